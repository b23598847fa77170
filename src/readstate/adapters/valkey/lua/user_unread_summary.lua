-- What may be unread for one user. ARGV[6]: how many timeline channels to look up.
-- Returns {counts, preferences, marker, timeline channels, their user rooms, their seqs read apart}, the first two as
-- {room, value, ...}; the last two have a value or false for each channel, or are empty: the user has more of them than
-- ARGV[6], or nothing apart. False: not loaded.
return function()
  begin(8)
  local user = 1
  if not open(user) then return false end
  close()
  local timelines, user_rooms, apart = call('SMEMBERS', key_of(user, TIMELINES)), {}, {}
  if #timelines > 0 and #timelines <= tonumber(ARGV[6]) then
    user_rooms = call('HMGET', key_of(user, USER_ROOMS), unpack(timelines))
    if call('EXISTS', key_of(user, READ_APART)) == 1 then
      apart = call('HMGET', key_of(user, READ_APART), unpack(timelines))
    end
  end
  return {
    call('HGETALL', key_of(user, COUNTS)), call('HGETALL', key_of(user, PREFERENCES)),
    call('HGET', key_of(user, USER_ROOMS), ''), timelines, user_rooms, apart,
  }
end
