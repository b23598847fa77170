-- Shared by scripts whose late copy would undo something newer: refuses a call that its sender has given up.
-- The last argument is the deadline (ms, by the server's clock); 0: none.
local deadline = tonumber(ARGV[#ARGV])
if deadline > 0 then
  local time = redis.call('TIME')
  if tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000 > deadline then
    return redis.error_reply('OUTDATED call: it comes too late')
  end
end
