-- Sets a member's preferences for a room. ARGV[6]: room, ARGV[7]: preferences (MessagePack; the sixth field is the
-- change number that set them), ARGV[8]: set them only if the current ones are not newer than this change number;
-- -1: always.
-- Returns the user's change number; -1: newer ones exist, or the user is not loaded or not a member.
return function()
  check_deadline()
  begin(8)
  local room, known = ARGV[6], tonumber(ARGV[8])
  local user = 1
  if not open(user, room) then
    call('DEL', key_of(user, LOADING)) -- a load in flight is too old
    return -1
  end
  local user_room = user_room_of(user, room)
  if not user_room or band(user_room.flags, MEMBER) == 0 then return -1 end
  local stored = known >= 0 and call('HGET', key_of(user, PREFERENCES), room)
  if stored and (cmsgpack.unpack(stored)[6] or 0) > known then return -1 end
  user_room.flags = bor(user_room.flags, PREFERS)
  put_user_room(user, user_room)
  local wanted = cmsgpack.unpack(ARGV[7])
  wanted[6] = number[user]
  put_field(user, PREFERENCES, room, cmsgpack.pack(wanted))
  close()
  return number[user]
end
