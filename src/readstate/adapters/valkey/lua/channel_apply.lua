-- Applies hot updates to channels.
-- KEYS  channel-latest:{shard} of each channel; then for each channel with updates its timeline, everyone, state
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 most messages in a timeline   5 token for a shard without witness
--       6 the channels, packed: {channel, change, {update, …}}, where an update is {change, drop (0 or 1), seq to put
--         or 0, its member, whether it mentions everyone (0 or 1), seq to remove or 0}   7.. the value of each channel
-- Returns how many updates changed a loaded timeline
local generation, now, ttl, cap

local function mention(everyone, known, seq, meant)
  if meant == 1 then
    known.everyone = known.everyone + call('ZADD', everyone, text(seq), text(seq))
  elseif known.everyone > 0 then
    known.everyone = known.everyone - call('ZREM', everyone, text(seq))
  end
end

local function put(timeline, everyone, known, seq, member, meant)
  if seq <= known.floor then return end
  if call('ZCOUNT', timeline, text(seq), text(seq)) == 0 then
    known.size = known.size + call('ZADD', timeline, text(seq), member)
  end
  mention(everyone, known, seq, meant)
  if known.size > cap then
    local gone = call('ZPOPMIN', timeline, known.size - cap)
    known.size, known.floor = cap, tonumber(gone[#gone])
    known.everyone = known.everyone - call('ZREMRANGEBYSCORE', everyone, '-inf', text(known.floor))
  end
end

local function remove(timeline, everyone, known, seq)
  known.size = known.size - call('ZREMRANGEBYSCORE', timeline, text(seq), text(seq))
  mention(everyone, known, seq, 0)
end

local function take(updates, timeline, everyone, state)
  local known = read_timeline(timeline, everyone, state, generation, now, ttl)
  if not known then return 0 end
  local taken = 0
  for _, update in ipairs(updates) do
    local change, drop, seq, member, meant, gone = unpack(update)
    if change > known.change then
      taken, known.change = taken + 1, change
      if drop == 1 then
        call('UNLINK', timeline, everyone, state)
        return taken
      end
      if seq > 0 then put(timeline, everyone, known, seq, member, meant)
      elseif gone > 0 then remove(timeline, everyone, known, gone) end
    end
  end
  call('HSET', state, 'change', text(known.change), 'floor', text(known.floor), 'size', text(known.size),
    'everyone', text(known.everyone))
  use(timeline, everyone, state, now, ttl)
  return taken
end

return function()
  generation, now, ttl, cap = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
  local channels = cmsgpack.unpack(ARGV[6])
  local taken, key, opened = 0, #channels, {}
  for index, channel in ipairs(channels) do
    local latest, updates = KEYS[index], channel[3]
    if not opened[latest] then opened[latest] = open(latest, ARGV[1], ARGV[5]) end
    keep(latest, channel[1], channel[2], ARGV[6 + index])
    if #updates > 0 then
      taken = taken + take(updates, KEYS[key + 1], KEYS[key + 2], KEYS[key + 3])
      key = key + 3
    end
  end
  return taken
end
