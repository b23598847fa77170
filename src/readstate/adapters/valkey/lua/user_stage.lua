-- Stages a part of a load in a key of its own, for `user_install`.
-- KEYS[1]: the key; ARGV[6]: its expiry (ms); ARGV[7]: HSET, ZADD or SADD; then the arguments of that command.
-- Returns 1.
redis.call(ARGV[7], KEYS[1], unpack(ARGV, 8))
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return 1
