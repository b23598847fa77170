-- The states of badges. Appended to badge_state.
-- KEYS  for each user badge:{user}, senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)
-- Returns for each user {} if it is not loaded, {''} if a load is in flight, else name, time of the last tap, size, sum
local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local answer = {}
for place = 1, #KEYS, 2 do
  local known = standing(KEYS[place], KEYS[place + 1], generation, now, ttl)
  local told = {}
  if known.ticket then
    told = {''}
  elseif known.tap then
    told = {known.name, text(known.tap), text(known.size), text(known.sum)}
    use_now_and_then(KEYS[place], KEYS[place + 1], known, now, ttl)
  end
  answer[#answer + 1] = told
end
return answer
