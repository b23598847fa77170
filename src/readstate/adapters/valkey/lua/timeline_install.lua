-- Installs a staged timeline, unless its channel has changed since.
-- KEYS  1 channel-latest:{shard}   2 timeline   3 everyone   4 state   5, 6 staged messages and seqs
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 channel   5 change   6 floor   7 how many messages
--       8 how many of them mention everyone   9 name of the load
-- Returns whether the timeline is the loaded one (0 or 1)
return function()
  local latest, timeline, everyone, state, messages, seqs = unpack(KEYS)
  local generation, channel, change = tonumber(ARGV[1]), ARGV[4], tonumber(ARGV[5])

  local function is_valid()
    local witness, known = unpack(call('HMGET', latest, '', channel))
    if not witness or not known or not is_current(string.match(witness, '^%d+'), generation) then return false end
    local known_change, flags = struct.unpack('>I8B', known)
    if known_change > change or flags % 2 == 0 then return false end -- odd flags: the channel has a timeline
    return call('ZCARD', messages) == tonumber(ARGV[7]) and call('ZCARD', seqs) == tonumber(ARGV[8])
  end

  if call('HGET', state, 'load') == ARGV[9] then return 1 end -- a retry; the first answer was lost
  if not is_valid() then
    call('UNLINK', messages, seqs)
    return 0
  end
  call('UNLINK', timeline, everyone, state)
  if call('EXISTS', messages) == 1 then call('RENAME', messages, timeline) end
  if call('EXISTS', seqs) == 1 then call('RENAME', seqs, everyone) end
  call('HSET', state, 'generation', ARGV[1], 'change', ARGV[5], 'floor', ARGV[6], 'size', ARGV[7],
    'everyone', ARGV[8], 'load', ARGV[9])
  use(timeline, everyone, state, tonumber(ARGV[2]), tonumber(ARGV[3]))
  return 1
end
