-- Users who may have channels open: they opened one, and may have left it since.
-- KEYS  focus:{shard}:channel, one or several
-- ARGV  1 generation
-- Returns the users of each channel
return function()
  local found = {}
  for index, focus in ipairs(KEYS) do found[index] = call('ZRANGE', focus, 0, -1) end
  return found
end, {'no-writes'}
