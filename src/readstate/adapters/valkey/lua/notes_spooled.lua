-- How many reads wait in all spools. Notes that no longer count are removed.
-- KEYS  1 notes
-- ARGV  1 generation   2 now (ms)
return function()
  local all, sum = call('HGETALL', KEYS[1]), 0
  for at = 1, #all, 2 do
    if string.sub(all[at], 1, 6) == 'spool:' then
      local depth, til = string.match(all[at + 1], '^(%d+) (%d+)$')
      if til and tonumber(til) > tonumber(ARGV[2]) then
        sum = sum + tonumber(depth)
      else
        call('HDEL', KEYS[1], all[at])
      end
    end
  end
  return sum
end
