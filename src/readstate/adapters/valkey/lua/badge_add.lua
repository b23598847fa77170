-- Adds senders who wrote to users who were away.
-- KEYS  for each user badge:{user}, senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 for each user, packed: {time of acceptance, sender, …}
-- Returns for each user how many senders were new (-1: the badge is not loaded), and the name of the badge

-- Returns how many senders were new, and the sum of the set then.
local function take(senders, known, messages)
  local added, sum = 0, known.sum
  for at = 1, #messages, 2 do
    if messages[at] > known.tap and call('SADD', senders, messages[at + 1]) == 1 then
      added, sum = added + 1, plus(sum, messages[at + 1])
    end
  end
  return added, sum
end

return function()
  local generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

  local answer = {}
  for index, messages in ipairs(cmsgpack.unpack(ARGV[4])) do
    local badge, senders = KEYS[2 * index - 1], KEYS[2 * index]
    local known = read_badge(badge, senders, generation, now, ttl)
    -- A load in flight may have missed these messages.
    if known.ticket then call('HDEL', badge, 'ticket') end
    local added = -1
    if known.tap then
      local sum
      added, sum = take(senders, known, messages)
      if added > 0 then call('HSET', badge, 'size', text(known.size + added), 'sum', text(sum)) end
      use_now_and_then(badge, senders, known, now, ttl)
    end
    answer[index] = {added, known.name or ''}
  end
  return answer
end
