-- A tap begins: drops the badge and the ticket of a load in flight, and blocks new loads.
-- KEYS  1 badge:{user}   2 senders:{user}   3 hold:{user}
-- ARGV  1 generation   2 token   3 longest duration of the hold (ms)
-- Returns 1
return function()
  call('UNLINK', KEYS[1], KEYS[2])
  call('HSET', KEYS[3], ARGV[2], '1')
  -- The latest tap sets the expiry: a process that died during a tap blocks loads no longer than this.
  call('PEXPIRE', KEYS[3], ARGV[3])
  return 1
end
