-- The leases of processes. `instances` is a hash: '' -> generation and when it began; instance -> when its lease ends
-- (both by the server's clock).
-- KEYS  1 instances
-- ARGV  1 generation   2 the caller, '' for none   3 length of its lease (ms)   4 1: take a lease, else renew it
-- Returns the age of the generation (ms), whether the caller has a lease, who lives, whose lease is over
return function()
  local instances, me = KEYS[1], ARGV[2]
  local time = call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

  local number, began = string.match(call('HGET', instances, '') or '', '^(%d+) (%d+)$')
  if not number or not is_current(number, ARGV[1]) then
    call('UNLINK', instances)
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
  return {now - tonumber(began), is_mine, live, gone}
end
