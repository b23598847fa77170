-- The leases of processes. `instances` is a hash: '' -> generation and when it began; instance -> when its lease ends
-- (both by the server's clock).
-- `generations-began` is a hash: number -> when a process first named it. It is lost with the leases.
-- KEYS  1 instances   2 generations-began
-- ARGV  1 generation   2 the caller, '' for none   3 length of its lease (ms)   4 1: take a lease, else renew it
--       5.. the numbers of all slots, as far as the caller knows them
-- Returns the age of the leases' generation (ms), whether the caller has a lease, who lives, whose lease is over, and
-- for each of the caller's numbers how long it is known (ms)
return function()
  local instances, me = KEYS[1], ARGV[2]
  local time = call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

  local number, began = string.match(call('HGET', instances, '') or '', '^(%d+) (%d+)$')
  if not number or not is_current(number, ARGV[1]) then
    call('UNLINK', instances, KEYS[2])
    call('HSET', instances, '', ARGV[1] .. ' ' .. text(now))
    began = now
  end

  local is_mine = 0
  if me ~= '' then
    local ends = call('HGET', instances, me)
    if ARGV[4] == '1' or (ends and tonumber(ends) > now) then -- a lease that is over is never renewed
      call('HSET', instances, me, text(now + tonumber(ARGV[3])))
      is_mine = 1
    end
  end

  local flat, live, gone = call('HGETALL', instances), {}, {}
  for at = 1, #flat, 2 do
    if flat[at] ~= '' then
      local list = tonumber(flat[at + 1]) > now and live or gone
      list[#list + 1] = flat[at]
    end
  end

  local ages = {}
  for at = 5, #ARGV do
    local first = call('HGET', KEYS[2], ARGV[at])
    if not first then
      first = now
      call('HSET', KEYS[2], ARGV[at], text(now))
    end
    ages[#ages + 1] = now - tonumber(first)
  end
  return {now - tonumber(began), is_mine, live, gone, ages}
end
