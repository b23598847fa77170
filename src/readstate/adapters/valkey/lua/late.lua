-- Shared by scripts whose late copy would undo something newer: one that arrives when its sender has given it up is
-- refused. The last argument says when that is (ms, by the clock of the server); 0: never.
local deadline = tonumber(ARGV[#ARGV])
if deadline > 0 then
  local time = redis.call('TIME')
  if tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000 > deadline then
    return redis.error_reply('OUTDATED call: it comes too late')
  end
end
