-- Notes up to where each partition of the log is applied. A position below the known one is ignored. Offsets follow
-- positions: they fall where a topic was recreated or lost its tail.
-- KEYS  1 places
-- ARGV  1 generation   2.. for each partition: its number, position, next offset
-- Returns how many were new
local places, taken = KEYS[1], 0
local known = redis.call('HGET', places, 'generation')
if not known or not is_current(known, ARGV[1]) then -- older positions say nothing about what is loaded now
  redis.call('UNLINK', places)
  redis.call('HSET', places, 'generation', ARGV[1])
end
for at = 2, #ARGV, 3 do
  local part, position, offset = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local before = redis.call('HGET', places, part)
  local was, place = string.match(before or '0 0', '^(%d+) '), text(position) .. ' ' .. text(offset)
  if place ~= before and position >= tonumber(was) then
    taken = taken + 1
    redis.call('HSET', places, part, place)
  end
end
return taken
