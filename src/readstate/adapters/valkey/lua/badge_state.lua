-- Shared: a badge is two keys. `senders` is the set of who wrote; `badge` says what is known of it: generation, ticket
-- (of a load that is under way) and, once it is loaded: tap (time of the last one), name (of this load), size and sum
-- (of the set), used (when). `hold` is there while somebody taps; the badge is not loaded then.

-- Adds a member to the sum of a set: in any order the same, and another one for any other set.
local function plus(sum, member)
  return (sum + tonumber(string.sub(redis.sha1hex(member), 1, 12), 16)) % 281474976710656
end

-- What is known of a badge: its ticket, and the rest if it is loaded and whole and was used in `ttl`.
local function standing(badge, senders, generation, now, ttl)
  local known = redis.call('HMGET', badge, 'generation', 'ticket', 'tap', 'name', 'size', 'sum', 'used')
  if not known[1] or not is_current(known[1], generation) then return {} end
  local found = {ticket = known[2]}
  local used = tonumber(known[7] or 0)
  if known[3] and known[4] and now - used < ttl and redis.call('SCARD', senders) == tonumber(known[5]) then
    found.tap, found.name, found.used = tonumber(known[3]), known[4], used
    found.size, found.sum = tonumber(known[5]), tonumber(known[6])
  end
  return found
end

-- Notes that a badge is used now. The server frees it some time after it counts as unused.
local function use(badge, senders, now, ttl)
  redis.call('HSET', badge, 'used', text(now))
  for _, key in ipairs({badge, senders}) do redis.call('PEXPIRE', key, text(ttl + ttl / 8 + 60000)) end
end

-- The same, where to note every use would make every question a write.
local function use_now_and_then(badge, senders, known, now, ttl)
  if now - known.used >= ttl / 100 then use(badge, senders, now, ttl) end
end
