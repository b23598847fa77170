-- The first user's rooms; shared by `user_view` and `user_seats`.
-- Returns user rooms, counts, apart: each has a value or false for each room; apart is empty if the user has none.
local function seats_in(rooms)
  if #rooms == 0 then return {}, {}, {} end
  local apart = {}
  if call('EXISTS', key_of(1, ASIDE)) == 1 then apart = call('HMGET', key_of(1, ASIDE), unpack(rooms)) end
  return call('HMGET', key_of(1, SEATS), unpack(rooms)), call('HMGET', key_of(1, COUNTS), unpack(rooms)), apart
end
