-- The pointers of users in one room, without noting a use. ARGV[6]: room.
-- Returns {user room, apart, read-at, ...}: empty where a user has none there, false where a user is not loaded.
local answers, room = {}, ARGV[6]
for user = 1, user_count do
  local seat, apart, moved = false, false, false
  if open(user, room) then
    seat, apart, moved = look_at(user, room) or '', '', ''
    if seat ~= '' then
      if band(byte(seat), APART) ~= 0 then apart = call('HGET', key_of(user, ASIDE), room) or '' end
      moved = call('HGET', KEYS[user * WIDTH], room) or ''
    end
  end
  answers[#answers + 1] = seat
  answers[#answers + 1] = apart
  answers[#answers + 1] = moved
end
return answers
