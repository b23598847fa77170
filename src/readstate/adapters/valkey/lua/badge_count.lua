-- Counts badges.
-- KEYS  for each user badge:{user}, senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)
-- Returns for each user the number of senders; -1 if the badge is not loaded
return function()
  local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

  local answer = {}
  for at = 1, #KEYS, 2 do
    local known = read_badge(KEYS[at], KEYS[at + 1], generation, now, ttl)
    if known.tap then use_now_and_then(KEYS[at], KEYS[at + 1], known, now, ttl) end
    answer[#answer + 1] = known.tap and known.size or -1
  end
  return answer
end
