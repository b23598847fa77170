-- The states of badges.
-- KEYS  for each user badge:{user}, senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)
-- Returns for each user {} if it is not loaded, {''} if a load is in flight, else name, time of the last tap, size, sum
return function()
  local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

  local answer = {}
  for at = 1, #KEYS, 2 do
    local known = read_badge(KEYS[at], KEYS[at + 1], generation, now, ttl)
    local row = {}
    if known.ticket then
      row = {''}
    elseif known.tap then
      row = {known.name, text(known.tap), text(known.size), text(known.sum)}
      use_now_and_then(KEYS[at], KEYS[at + 1], known, now, ttl)
    end
    answer[#answer + 1] = row
  end
  return answer
end
