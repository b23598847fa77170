-- Takes in who wrote to users who are away. After badge_state.
-- KEYS  for each user badge:{user}, senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 for each user, packed: {time of acceptance, sender, …}
-- Returns how many were new
local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local added = 0
for index, messages in ipairs(cmsgpack.unpack(ARGV[4])) do
  local badge, senders = KEYS[2 * index - 1], KEYS[2 * index]
  local known = standing(badge, senders, generation, now, ttl)
  -- A load that is under way may have missed them.
  if known.ticket then redis.call('HDEL', badge, 'ticket') end
  if known.tap then
    for place = 1, #messages, 2 do
      if messages[place] > known.tap then added = added + redis.call('SADD', senders, messages[place + 1]) end
    end
    redis.call('HSET', badge, 'size', redis.call('SCARD', senders))
    use(badge, senders, now, ttl)
  end
end
return added
