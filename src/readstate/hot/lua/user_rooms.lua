-- The rooms that one user is a member of; false: not loaded.
local user = open(1)
if not user.loaded then return false end
local rooms, all = {}, call('HGETALL', user.seats)
for index = 1, #all, 2 do
  if band(byte(all[index + 1]), MEMBER) ~= 0 then rooms[#rooms + 1] = all[index] end
end
return rooms
