-- The first user's seats in some rooms: what `user_view` and `user_seats` share.
-- Returns seats, counts, apart: each a value or false for each room; apart is empty if there is none.
local function seats_in(rooms)
  if #rooms == 0 then return {}, {}, {} end
  local apart = {}
  if call('EXISTS', key_of(1, ASIDE)) == 1 then apart = call('HMGET', key_of(1, ASIDE), unpack(rooms)) end
  return call('HMGET', key_of(1, SEATS), unpack(rooms)), call('HMGET', key_of(1, COUNTS), unpack(rooms)), apart
end
