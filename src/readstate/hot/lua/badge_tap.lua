-- Forgets everyone up to a tap. After badge_state.
-- KEYS  1 badge:{user}   2 senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 time of the tap (ms)
-- Returns whether the badge is loaded and had no later tap (0 or 1)
local badge, senders, now, ttl = KEYS[1], KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3])
local known = standing(badge, senders, tonumber(ARGV[1]), now, ttl)
redis.call('HDEL', badge, 'ticket')
if not known.tap or tonumber(ARGV[4]) <= known.tap then return 0 end
redis.call('UNLINK', senders)
redis.call('HSET', badge, 'tap', ARGV[4], 'size', 0)
use(badge, senders, now, ttl)
return 1
