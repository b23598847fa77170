-- Stages a part of a load in a key of its own, for `user_install`.
-- KEYS  1 the key
-- ARGV  1 generation   2 expiry (ms)   3 HSET, ZADD or SADD   4.. the arguments of that command
-- Returns 1
return function()
  call(ARGV[3], KEYS[1], unpack(ARGV, 4))
  call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
