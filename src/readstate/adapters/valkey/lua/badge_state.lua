-- Shared. A badge is two keys: `senders` is the set of senders, and `badge` is a hash that describes the set:
-- generation, ticket (of a load in flight) and, once loaded: tap (time of the last tap), name (of this load), size and
-- sum (of the set), used (time of the last use). `hold` exists during a tap; the badge is not loaded then.

-- Adds a member to the sum of a set. The sum does not depend on the order, and differs between sets.
local function plus(sum, member)
  return (sum + tonumber(string.sub(redis.sha1hex(member), 1, 12), 16)) % 281474976710656
end

-- The state of a badge: its ticket, and the rest if it is loaded, complete, and was used within `ttl`.
local function read_badge(badge, senders, generation, now, ttl)
  local known = call('HMGET', badge, 'generation', 'ticket', 'tap', 'name', 'size', 'sum', 'used')
  if not known[1] or not is_current(known[1], generation) then return {} end
  local found = {ticket = known[2]}
  local used = tonumber(known[7] or 0)
  if known[3] and known[4] and now - used < ttl and call('SCARD', senders) == tonumber(known[5]) then
    found.tap, found.name, found.used = tonumber(known[3]), known[4], used
    found.size, found.sum = tonumber(known[5]), tonumber(known[6])
  end
  return found
end

-- Notes a use. The keys expire some time after the badge counts as unused.
local function use(badge, senders, now, ttl)
  call('HSET', badge, 'used', text(now))
  for _, key in ipairs({badge, senders}) do call('PEXPIRE', key, text(ttl + ttl / 8 + 60000)) end
end

-- The same, but not for every use: otherwise every read of a badge would be a write.
local function use_now_and_then(badge, senders, known, now, ttl)
  if now - known.used >= ttl / 100 then use(badge, senders, now, ttl) end
end
