-- What may be unread for one user. Returns {counts, preferences, marker, timeline channels}, the first two as
-- {room, value, ...}; false: not loaded.
return function()
  begin(8)
  local user = 1
  if not open(user) then return false end
  close()
  return {
    call('HGETALL', key_of(user, COUNTS)), call('HGETALL', key_of(user, PREFERENCES)),
    call('HGET', key_of(user, USER_ROOMS), ''), call('SMEMBERS', key_of(user, TIMELINES)),
  }
end
