-- Who may have channels open: whoever opened one and has perhaps left it since.
-- KEYS  focus:{shard}:channel, one or several
-- ARGV  1 generation
-- Returns the users of each
local found = {}
for index, focus in ipairs(KEYS) do found[index] = redis.call('ZRANGE', focus, 0, -1) end
return found
