-- Takes loaded channels into shards that were not emptied since they were announced. After channel_shard.
-- KEYS  channel-latest:{shard}, one or several
-- ARGV  1 generation   2.. for each key, packed: {witness, {channel, change, value}, …}
-- Returns how many shards took theirs
local taken = 0
for index, latest in ipairs(KEYS) do
  local load = cmsgpack.unpack(ARGV[index + 1])
  if redis.call('HGET', latest, '') == load[1] then
    for place = 2, #load do keep(latest, unpack(load[place])) end
    taken = taken + 1
  end
end
return taken
