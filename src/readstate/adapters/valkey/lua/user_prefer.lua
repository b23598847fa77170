-- Sets a member's preferences for a room. ARGV[6]: room, ARGV[7]: preferences (MessagePack; the sixth field is the
-- change number that set them), ARGV[8]: set them only if the current ones are not newer than this change number;
-- -1: always.
-- Returns the user's change number; -1: newer ones exist, or the user is not loaded or not a member.
local room, known = ARGV[6], tonumber(ARGV[8])
local user = 1
if not open(user, room) then
  call('DEL', key_of(user, LOADING)) -- a load in flight is too old
  return -1
end
local seat = seat_of(user, room)
if not seat or band(seat.flags, MEMBER) == 0 then return -1 end
local standing = known >= 0 and call('HGET', key_of(user, PREFERENCES), room)
if standing and (cmsgpack.unpack(standing)[6] or 0) > known then return -1 end
seat.flags = bor(seat.flags, PREFERS)
put_seat(user, seat)
local wanted = cmsgpack.unpack(ARGV[7])
wanted[6] = number[user]
put_field(user, PREFERENCES, room, cmsgpack.pack(wanted))
close()
return number[user]
