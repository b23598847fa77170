-- Drops a channel.
-- KEYS  1 channel-latest:{shard}   2 timeline   3 everyone   4 state
-- ARGV  1 generation   2 channel   3 token for a new witness, so that loads announced before are refused; '': keep it
-- Returns whether there was anything to drop (0 or 1)
return function()
  local known = call('HDEL', KEYS[1], ARGV[2]) + call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
  local witness = call('HGET', KEYS[1], '')
  if witness and ARGV[3] ~= '' then
    call('HSET', KEYS[1], '', string.match(witness, '^%d+') .. ' ' .. ARGV[3])
  end
  return known > 0 and 1 or 0
end
