-- Marks a master with a generation. A marker with a higher number stays, if the rest is the same.
-- KEYS  1 the marker
-- ARGV  1 number   2 id of the durable store   3 run id of the master
-- Returns the marker
return function()
  local known = call('GET', KEYS[1])
  if known then
    local number, rest = string.match(known, '^(%d+) (.*)$')
    if rest == ARGV[2] .. ' ' .. ARGV[3] and tonumber(number) >= tonumber(ARGV[1]) then return known end
  end
  local marker = table.concat(ARGV, ' ')
  call('SET', KEYS[1], marker)
  return marker
end
