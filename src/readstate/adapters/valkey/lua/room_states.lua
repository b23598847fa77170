-- The first user's rooms; shared by `user_view` and `user_room_states`.
-- Returns user rooms, counts, apart: each has a value or false for each room; apart is empty if the user has none.
local function room_states(rooms)
  if #rooms == 0 then return {}, {}, {} end
  local apart = {}
  if call('EXISTS', key_of(1, READ_APART)) == 1 then apart = call('HMGET', key_of(1, READ_APART), unpack(rooms)) end
  return call('HMGET', key_of(1, USER_ROOMS), unpack(rooms)), call('HMGET', key_of(1, COUNTS), unpack(rooms)), apart
end
