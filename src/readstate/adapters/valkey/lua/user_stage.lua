-- Puts a part of a load into a key of its own, until `user_install` takes it.
-- KEYS[1]: the key; ARGV[6]: how long it stays, in ms; ARGV[7]: HSET, ZADD or SADD; then its arguments.
redis.call(ARGV[7], KEYS[1], unpack(ARGV, 8))
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return 1
