-- Messages in a channel are no longer read at once.
-- KEYS  1 presence:{user}   2 unproven:{user}
-- ARGV  6 for the user, packed: {channel}
-- Returns how many devices had it open
return function()
  begin()
  local channel, flat, count = unpacked(ARGV[6])[1], call('HGETALL', KEYS[1]), 0
  for at = 1, #flat, 2 do
    local value = flat[at] ~= '' and unpacked(flat[at + 1])
    if value and value[3] == channel then
      call('HSET', KEYS[1], flat[at], pack({value[1], value[2], ''}))
      count = count + 1
    end
  end
  return count
end
