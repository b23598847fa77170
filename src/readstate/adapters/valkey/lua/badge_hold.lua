-- Somebody taps: drops the badge, and the ticket of a load that is under way, and lets nobody load it.
-- KEYS  1 badge:{user}   2 senders:{user}   3 hold:{user}
-- ARGV  1 generation   2 token   3 for how long at most (ms)
-- Returns 1
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('HSET', KEYS[3], ARGV[2], '1')
-- Of several, the last one counts: whoever died with a token in hand keeps others waiting no longer than this.
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return 1
