-- Shared. A shard of channels, `channel-latest:{shard}`, is a hash with one field per channel, and a witness.
--
-- The witness is the field '' with "<generation> <token>". The generation is the one in which everything in the shard
-- was written. The token identifies the hash: a caller that finds another token than before, or none, knows that the
-- shard was emptied in between.

-- Returns the witness of a shard in `generation`; drops a shard of an older generation first.
local function open(latest, generation, token)
  local witness = call('HGET', latest, '')
  if witness and is_current(string.match(witness, '^%d+'), generation) then return witness end
  call('UNLINK', latest)
  call('HSET', latest, '', generation .. ' ' .. token)
  return generation .. ' ' .. token
end

-- Stores the value of a channel unless a newer one is known. A value begins with its change number and its flags.
local function keep(latest, channel, change, value)
  local known = call('HGET', latest, channel)
  if not known or change >= struct.unpack('>I8', known) then call('HSET', latest, channel, value) end
end
