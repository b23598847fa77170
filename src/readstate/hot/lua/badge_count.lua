-- Counts a badge. After badge_state.
-- KEYS  1 badge:{user}   2 senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)
-- Returns how many have written; -1 if it is not loaded
local now, ttl = tonumber(ARGV[2]), tonumber(ARGV[3])
local known = standing(KEYS[1], KEYS[2], tonumber(ARGV[1]), now, ttl)
if not known.tap then return -1 end
use_now_and_then(KEYS[1], KEYS[2], known, now, ttl)
return known.size
