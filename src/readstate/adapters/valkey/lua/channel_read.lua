-- Reads channels.
-- KEYS  channel-latest:{shard}, one or several
-- ARGV  1 generation   2.. for each key the ids of its channels, packed
-- Returns for each key a list with the value of each id, false if it is not loaded; false for a shard of which nothing
-- is loaded in this generation
return function()
  local generation, found = tonumber(ARGV[1]), {}
  for index, latest in ipairs(KEYS) do
    local values = call('HMGET', latest, '', unpack(cmsgpack.unpack(ARGV[index + 1])))
    local witness = table.remove(values, 1)
    found[index] = witness and is_current(string.match(witness, '^%d+'), generation) and values
  end
  return found
end, {'no-writes'}
