-- One user's state in some rooms. ARGV[6]: rooms (MessagePack).
-- Returns {marker, user rooms, counts, apart}, the last three as in user_rooms.lua.
return function()
  begin(3)
  return {call('HGET', key_of(1, USER_ROOMS), ''), room_states(cmsgpack.unpack(ARGV[6]))}
end, {'no-writes'}
