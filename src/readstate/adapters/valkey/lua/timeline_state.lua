-- Shared. A timeline is three keys: `timeline` has the messages ("<at>:<id>", score = seq), `everyone` the seqs of
-- those that mention everyone, and `state` describes both: generation, change (of the channel), floor (the newest seq
-- that was dropped), size, everyone (the sizes of both), used (time of the last use), load (name of the load).

-- The state of a timeline; nil: it is not loaded, is incomplete, or was not used for `ttl`.
local function read_timeline(timeline, everyone, state, generation, now, ttl)
  local known = call('HMGET', state, 'generation', 'change', 'floor', 'size', 'everyone', 'used')
  for index = 1, 6 do
    if not known[index] then return nil end
    known[index] = tonumber(known[index])
  end
  if not is_current(known[1], generation) or now - known[6] >= ttl then return nil end
  if call('ZCARD', timeline) ~= known[4] or call('ZCARD', everyone) ~= known[5] then return nil end
  return {change = known[2], floor = known[3], size = known[4], everyone = known[5], used = known[6]}
end

-- Notes a use. The keys expire some time after the timeline counts as unused.
local function use(timeline, everyone, state, now, ttl)
  call('HSET', state, 'used', text(now))
  for _, key in ipairs({timeline, everyone, state}) do call('PEXPIRE', key, text(ttl + ttl / 8 + 60000)) end
end
