-- A tap is over: the badge may be loaded again, once nobody else taps.
-- KEYS  1 badge:{user}   2 senders:{user}   3 hold:{user}
-- ARGV  1 generation   2 token
-- Returns whether it was still held (0 or 1)
-- What was loaded after a hold had expired knows nothing of the tap.
redis.call('UNLINK', KEYS[1], KEYS[2])
return redis.call('HDEL', KEYS[3], ARGV[2])
