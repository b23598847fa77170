-- The newest generation that is fresh.
-- KEYS  1 notes
return tonumber(redis.call('HGET', KEYS[1], 'fresh') or '0')
