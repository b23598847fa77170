-- Installs a staged timeline, unless its channel has changed since. Appended to timeline_state.
-- KEYS  1 channel-latest:{shard}   2 timeline   3 everyone   4 state   5, 6 staged messages and seqs
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 channel   5 change   6 floor   7 how many messages
--       8 how many of them mention everyone   9 name of the load
-- Returns whether the timeline is the loaded one (0 or 1)
local latest, timeline, everyone, state, messages, seqs = unpack(KEYS)
local generation, channel, change = tonumber(ARGV[1]), ARGV[4], tonumber(ARGV[5])

local function is_valid()
  local witness, known = unpack(redis.call('HMGET', latest, '', channel))
  if not witness or not known or not is_current(string.match(witness, '^%d+'), generation) then return false end
  local known_change, flags = struct.unpack('>I8B', known)
  if known_change > change or flags % 2 == 0 then return false end -- odd flags: the channel has a timeline
  return redis.call('ZCARD', messages) == tonumber(ARGV[7]) and redis.call('ZCARD', seqs) == tonumber(ARGV[8])
end

if redis.call('HGET', state, 'load') == ARGV[9] then return 1 end -- a retry; the first answer was lost
if not is_valid() then
  redis.call('UNLINK', messages, seqs)
  return 0
end
redis.call('UNLINK', timeline, everyone, state)
if redis.call('EXISTS', messages) == 1 then redis.call('RENAME', messages, timeline) end
if redis.call('EXISTS', seqs) == 1 then redis.call('RENAME', seqs, everyone) end
redis.call('HSET', state, 'generation', ARGV[1], 'change', ARGV[5], 'floor', ARGV[6], 'size', ARGV[7],
  'everyone', ARGV[8], 'load', ARGV[9])
use(timeline, everyone, state, tonumber(ARGV[2]), tonumber(ARGV[3]))
return 1
