-- The pointers of users in one room, without noting a use. ARGV[6]: room.
-- Returns {user room, apart, read-at, ...}: empty where a user has none there, false where a user is not loaded.
return function()
  begin(3)
  local answers, room = {}, ARGV[6]
  for user = 1, user_count do
    local user_room, apart, moved = false, false, false
    if open(user, room) then
      user_room, apart, moved = read_user_room(user, room) or '', '', ''
      if user_room ~= '' then
        if band(byte(user_room), APART) ~= 0 then apart = call('HGET', key_of(user, READ_APART), room) or '' end
        moved = call('HGET', KEYS[user * WIDTH], room) or ''
      end
    end
    answers[#answers + 1] = user_room
    answers[#answers + 1] = apart
    answers[#answers + 1] = moved
  end
  return answers
end
