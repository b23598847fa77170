-- Shared: a shard of channels, `channel-latest:{shard}`, is a hash with one field a channel and a witness.
--
-- The witness is the field '' with "<generation> <token>". It says under which generation everything in the shard
-- was written, and the token says whether this is still the same hash: whoever has seen it and sees another one, or
-- none, knows that the shard was emptied in between.

-- The witness of a shard that is as good as `generation`; what an older one has left is dropped.
local function open(latest, generation, token)
  local witness = redis.call('HGET', latest, '')
  if witness and is_current(string.match(witness, '^%d+'), generation) then return witness end
  redis.call('UNLINK', latest)
  redis.call('HSET', latest, '', generation .. ' ' .. token)
  return generation .. ' ' .. token
end

-- Takes the value of a channel unless a newer one is known. A value begins with its change number and its flags.
local function keep(latest, channel, change, value)
  local known = redis.call('HGET', latest, channel)
  if not known or change >= struct.unpack('>I8', known) then redis.call('HSET', latest, channel, value) end
end
