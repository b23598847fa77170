-- Counts unread messages in timelines.
-- KEYS  for each channel its timeline, everyone, state
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 for each channel, packed: {query, …}, where a query is {seq of the
--       pointer, runs of seqs read apart beyond it as {low, high, low, high, …} in order, {seq that names the user, …}}
-- Returns, packed, for each channel false (not loaded) or {answer, …}, where an answer is {count, mentions, floor, seq
-- of the first unread or 0, its member}

-- How many of these seqs, which are sorted, are in a run.
local function within(runs, seqs)
  local count, index = 0, 1
  for _, seq in ipairs(seqs) do
    seq = tonumber(seq)
    while runs[index] and runs[index + 1] < seq do index = index + 2 end
    if runs[index] and runs[index] <= seq then count = count + 1 end
  end
  return count
end

-- How many messages mention everyone, come after a seq and are in no run.
local function everyone_beyond(everyone, seq, runs)
  if #runs == 0 then return call('ZCOUNT', everyone, '(' .. text(seq), '+inf') end
  local seqs = call('ZRANGEBYSCORE', everyone, '(' .. text(seq), '+inf')
  return #seqs - within(runs, seqs)
end

-- How many messages come after a seq and are in no run.
local function beyond(timeline, seq, runs)
  local count = call('ZCOUNT', timeline, '(' .. text(seq), '+inf')
  for index = 1, #runs, 2 do
    if count == 0 then return 0 end
    count = count - call('ZCOUNT', timeline, text(runs[index]), text(runs[index + 1]))
  end
  return count
end

-- The first message after a seq that is in no run. Each lookup either finds it or skips a run.
local function first_beyond(timeline, seq, runs)
  local index = 1
  while true do
    local found = call('ZRANGEBYSCORE', timeline, '(' .. text(seq), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    local first = tonumber(found[2])
    while runs[index] and runs[index + 1] < first do index = index + 2 end
    if not runs[index] or first < runs[index] then return first, found[1] end
    seq = runs[index + 1]
  end
end

-- How many messages name the user, except those that are counted because they mention everyone.
local function named_alone(timeline, everyone, seq, named, any)
  local count = 0
  for _, one in ipairs(named) do
    local counted = any and one > seq and call('ZSCORE', everyone, text(one))
    if not counted then count = count + call('ZCOUNT', timeline, text(one), text(one)) end
  end
  return count
end

local function answer(timeline, everyone, known, seq, runs, named)
  local count, mentions, first, member = beyond(timeline, seq, runs), 0, 0, ''
  if count > 0 then first, member = first_beyond(timeline, seq, runs) end
  if known.everyone > 0 then mentions = everyone_beyond(everyone, seq, runs) end
  mentions = mentions + named_alone(timeline, everyone, seq, named, known.everyone > 0)
  return {count, mentions, known.floor, first, member}
end

return function()
  local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

  local answers = {}
  for index, queries in ipairs(cmsgpack.unpack(ARGV[4])) do
    local timeline, everyone, state = KEYS[3 * index - 2], KEYS[3 * index - 1], KEYS[3 * index]
    local known = read_timeline(timeline, everyone, state, generation, now, ttl)
    answers[index] = known and {} or false
    for number, query in ipairs(known and queries or {}) do
      answers[index][number] = answer(timeline, everyone, known, unpack(query))
    end
    -- Noting every use would make every count a write.
    if known and now - known.used >= ttl / 100 then use(timeline, everyone, state, now, ttl) end
  end
  return cmsgpack.pack(answers)
end
