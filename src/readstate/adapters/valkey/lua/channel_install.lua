-- Installs loaded channels into shards that were not emptied since they were announced.
-- KEYS  channel-latest:{shard}, one or several
-- ARGV  1 generation   2 for each key, packed: {witness, channel, change, channel, change, …}   3.. the value of each
--       channel
-- Returns how many shards accepted their channels
return function()
  local taken, value = 0, 2
  for index, load in ipairs(cmsgpack.unpack(ARGV[2])) do
    local is_same = call('HGET', KEYS[index], '') == load[1]
    for at = 2, #load, 2 do
      value = value + 1
      if is_same then keep(KEYS[index], load[at], load[at + 1], ARGV[value]) end
    end
    if is_same then taken = taken + 1 end
  end
  return taken
end
