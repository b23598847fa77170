-- Notes that a generation is fresh. A higher one stays.
-- KEYS  1 notes
-- ARGV  1 generation   2 the generation that is fresh
return function()
  local known = tonumber(call('HGET', KEYS[1], 'fresh') or '0')
  if tonumber(ARGV[2]) > known then call('HSET', KEYS[1], 'fresh', ARGV[2]) end
  return 0
end
