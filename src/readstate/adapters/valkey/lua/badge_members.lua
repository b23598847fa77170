-- The senders on badges.
-- KEYS  for each user badge:{user}, senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)
-- Returns for each user the name and the members of the badge; {} if it is not loaded
return function()
  local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

  local answer = {}
  for at = 1, #KEYS, 2 do
    local known = read_badge(KEYS[at], KEYS[at + 1], generation, now, ttl)
    answer[#answer + 1] = known.tap and {known.name, call('SMEMBERS', KEYS[at + 1])} or {}
  end
  return answer
end, {'no-writes'}
