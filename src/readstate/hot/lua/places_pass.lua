-- Notes up to where each part of the log is applied. A place that is not further than the known one is ignored.
-- KEYS  1 places
-- ARGV  1 generation   2.. for each part: its number, position, next offset
-- Returns how many were new
local places, taken = KEYS[1], 0
local known = redis.call('HGET', places, 'generation')
if not known or not is_current(known, ARGV[1]) then -- what an older one has left says nothing of what is loaded now
  redis.call('UNLINK', places)
  redis.call('HSET', places, 'generation', ARGV[1])
end
for at = 2, #ARGV, 3 do
  local part, position, offset = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local before = redis.call('HGET', places, part)
  local was, next_offset = string.match(before or '0 0', '^(%d+) (%d+)$')
  if not before or position > tonumber(was) or offset > tonumber(next_offset) then
    taken = taken + 1
    redis.call('HSET', places, part,
      text(math.max(position, tonumber(was))) .. ' ' .. text(math.max(offset, tonumber(next_offset))))
  end
end
return taken
