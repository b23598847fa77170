-- Sets one user's preferences for a room. ARGV[6]: room, ARGV[7]: preferences, '' for none.
-- Returns the user's change number; -1: not loaded, or no such seat.
local room = ARGV[6]
local user = 1
if not open(user, room) then
  call('DEL', key_of(user, LOADING)) -- a load that is under way is too old
  return -1
end
local seat = seat_of(user, room)
if not seat then return -1 end
if ARGV[7] == '' then
  call('HDEL', key_of(user, PREFERENCES), room)
  seat.flags = band(seat.flags, bnot(PREFERS))
else
  put_field(user, PREFERENCES, room, ARGV[7])
  seat.flags = bor(seat.flags, PREFERS)
end
put_seat(user, seat)
close()
return number[user]
