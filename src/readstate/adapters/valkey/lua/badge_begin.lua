-- Announces a load.
-- KEYS  1 badge:{user}   2 senders:{user}   3 hold:{user}
-- ARGV  1 generation   2 now (ms)   3 ttl (ms)   4 ticket to use if no load is in flight
-- Returns the ticket; empty while a tap holds the badge
return function()
  local badge, senders, now, ttl = KEYS[1], KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3])
  if call('EXISTS', KEYS[3]) == 1 then return '' end
  local known = read_badge(badge, senders, tonumber(ARGV[1]), now, ttl)
  if known.ticket then return known.ticket end
  if not known.tap then call('UNLINK', badge, senders) end -- remains of an older badge
  call('HSET', badge, 'generation', ARGV[1], 'ticket', ARGV[4])
  use(badge, senders, now, ttl)
  return ARGV[4]
end
