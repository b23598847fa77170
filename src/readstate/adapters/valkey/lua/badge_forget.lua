-- Drops a badge, and the ticket of a load that is under way.
-- KEYS  1 badge:{user}   2 senders:{user}
-- ARGV  1 generation
-- Returns how many keys there were
return redis.call('UNLINK', KEYS[1], KEYS[2])
