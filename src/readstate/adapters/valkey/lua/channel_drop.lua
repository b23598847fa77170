-- Reads the drop number that all processes share, or raises it before a channel is dropped.
-- KEYS  1 drops
-- ARGV  1 generation   2 how much to add (0 or 1)
-- Returns the number of drops in this generation
return function()
  local known, count = string.match(call('GET', KEYS[1]) or '0 0', '^(%d+) (%d+)$')
  count = is_current(known, ARGV[1]) and tonumber(count) or 0
  if ARGV[2] == '0' then return count end
  call('SET', KEYS[1], ARGV[1] .. ' ' .. text(count + 1))
  return count + 1
end
