-- Removes users who don't have a channel open. A user who opened it recently stays: the device may not be written yet.
-- KEYS  1 focus:{shard}:channel
-- ARGV  1 generation   2 time (ms): users who opened it later stay   3 users, packed
-- Returns how many were removed
return function()
  local count = 0
  for _, user in ipairs(cmsgpack.unpack(ARGV[3])) do
    local opened = call('ZSCORE', KEYS[1], user)
    if opened and tonumber(opened) < tonumber(ARGV[2]) then count = count + call('ZREM', KEYS[1], user) end
  end
  return count
end
