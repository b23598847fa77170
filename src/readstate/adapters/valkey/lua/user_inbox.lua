-- A page of one user's inbox, the latest first. ARGV[6]: the time to continue from, or '' for the beginning;
-- ARGV[7]: page size.
-- Returns {channel, time, ...}: all entries of that time, a page of earlier ones, and all entries of the earliest time
-- among these, because the server does not order entries of one time as the caller does; false: not loaded.
return function()
  begin(8)
  local user = 1
  if not open(user) then return false end
  close()
  local found, from = {}, '+inf'

  local function add(some)
    for _, value in ipairs(some) do found[#found + 1] = value end
  end

  if ARGV[6] ~= '' then
    add(call('ZRANGEBYSCORE', key_of(user, INBOX), ARGV[6], ARGV[6], 'WITHSCORES'))
    from = '(' .. ARGV[6]
  end
  local earlier = call('ZREVRANGEBYSCORE', key_of(user, INBOX), from, '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[7])
  add(earlier)
  if #earlier > 0 then
    local last = earlier[#earlier]
    add(call('ZRANGEBYSCORE', key_of(user, INBOX), last, last, 'WITHSCORES'))
  end
  return found
end
