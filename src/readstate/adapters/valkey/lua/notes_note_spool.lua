-- Notes how many reads wait in the spool of an instance.
-- KEYS  1 notes
-- ARGV  1 generation   2 instance   3 how many reads wait there   4 until when this counts (ms)
return function()
  if tonumber(ARGV[3]) == 0 then
    return call('HDEL', KEYS[1], 'spool:' .. ARGV[2])
  end
  call('HSET', KEYS[1], 'spool:' .. ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
  return 0
end
