-- Shared: a timeline is three keys. `timeline` has the messages ("<at>:<id>", score = seq), `everyone` the seqs of
-- those that mention everyone, and `state` says what the other two must look like: generation, change (of the
-- channel), floor (the newest seq that was let go), size, everyone (sizes of both), used (when), load (whose).

-- What is known of a timeline; nil: it is not loaded, or only a part of it is left, or nobody has used it for `ttl`.
local function standing(timeline, everyone, state, generation, now, ttl)
  local known = redis.call('HMGET', state, 'generation', 'change', 'floor', 'size', 'everyone', 'used')
  for index = 1, 6 do
    if not known[index] then return nil end
    known[index] = tonumber(known[index])
  end
  if not is_current(known[1], generation) or now - known[6] >= ttl then return nil end
  if redis.call('ZCARD', timeline) ~= known[4] or redis.call('ZCARD', everyone) ~= known[5] then return nil end
  return {change = known[2], floor = known[3], size = known[4], everyone = known[5], used = known[6]}
end

-- Notes that a timeline is used now. The server frees it some time after it counts as unused.
local function use(timeline, everyone, state, now, ttl)
  redis.call('HSET', state, 'used', text(now))
  for _, key in ipairs({timeline, everyone, state}) do redis.call('PEXPIRE', key, text(ttl + ttl / 8 + 60000)) end
end
