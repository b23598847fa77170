-- Shared: a badge is two keys. `senders` is the set of who wrote; `badge` says what is known of it: generation, ticket
-- (of a load that is under way) and, once it is loaded: tap (time of the last one), size (of the set), used (when).

-- What is known of a badge: its ticket, and its tap and time of use if it is loaded and whole and was used in `ttl`.
local function standing(badge, senders, generation, now, ttl)
  local known = redis.call('HMGET', badge, 'generation', 'ticket', 'tap', 'size', 'used')
  if not known[1] or not is_current(known[1], generation) then return {} end
  local found = {ticket = known[2]}
  local used = tonumber(known[5] or 0)
  if known[3] and now - used < ttl and redis.call('SCARD', senders) == tonumber(known[4]) then
    found.tap, found.size, found.used = tonumber(known[3]), tonumber(known[4]), used
  end
  return found
end

-- Notes that a badge is used now. The server frees it some time after it counts as unused.
local function use(badge, senders, now, ttl)
  redis.call('HSET', badge, 'used', text(now))
  for _, key in ipairs({badge, senders}) do redis.call('PEXPIRE', key, text(ttl + ttl / 8 + 60000)) end
end
