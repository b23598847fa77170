-- Installs a loaded badge, unless something happened since its ticket was issued.
-- KEYS  1 badge:{user}   2 senders:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 ticket   5 time of the last tap (ms)   6 senders, packed
-- Returns whether it was installed (0 or 1)
return function()
  local badge, senders, now, ttl = KEYS[1], KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3])
  local known = read_badge(badge, senders, tonumber(ARGV[1]), now, ttl)
  call('HDEL', badge, 'ticket')
  if known.ticket ~= ARGV[4] then return 0 end
  call('UNLINK', senders)
  local size, sum = 0, 0
  for _, sender in ipairs(cmsgpack.unpack(ARGV[6])) do
    size, sum = size + call('SADD', senders, sender), plus(sum, sender)
  end
  call('HSET', badge, 'generation', ARGV[1], 'tap', ARGV[5], 'name', ARGV[4], 'size', text(size), 'sum', text(sum))
  use(badge, senders, now, ttl)
  return 1
end
