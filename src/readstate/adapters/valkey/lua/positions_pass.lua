-- Notes up to where each partition of the log is applied. A position below the known one is ignored. Offsets follow
-- positions: they fall where a topic was recreated or lost its tail.
-- KEYS  1 places
-- ARGV  1 generation   2.. for each partition: its number, position, next offset
-- Returns how many were new
return function()
  local positions, taken = KEYS[1], 0
  local known = call('HGET', positions, 'generation')
  if not known or not is_current(known, ARGV[1]) then -- older positions say nothing about what is loaded now
    call('UNLINK', positions)
    call('HSET', positions, 'generation', ARGV[1])
  end
  for at = 2, #ARGV, 3 do
    local part, position, offset = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local before = call('HGET', positions, part)
    local was, applied = string.match(before or '0 0', '^(%d+) '), text(position) .. ' ' .. text(offset)
    if applied ~= before and position >= tonumber(was) then
      taken = taken + 1
      call('HSET', positions, part, applied)
    end
  end
  return taken
end
