-- Sets one user's preferences for a room. ARGV[6]: room, ARGV[7]: preferences, '' for none.
-- Returns the user's change number; -1: not loaded, or no such seat.
local user, room = open(1), ARGV[6]
if not user.loaded then
  call('DEL', user.loading) -- a load that is under way is too old
  return -1
end
local seat = seat_of(user, room)
if not seat then return -1 end
if ARGV[7] == '' then
  call('HDEL', user.preferences, room)
  seat.flags = band(seat.flags, bnot(PREFERS))
else
  put_field(user, user.preferences, room, ARGV[7])
  seat.flags = bor(seat.flags, PREFERS)
end
put_seat(user, room, seat)
close()
return user.number
