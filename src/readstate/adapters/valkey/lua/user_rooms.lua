-- Returns the rooms that one user is a member of; false: not loaded.
return function()
  begin(8)
  local user = 1
  if not open(user) then return false end
  local rooms, all = {}, call('HGETALL', key_of(user, USER_ROOMS))
  for index = 1, #all, 2 do
    if all[index] ~= '' and band(byte(all[index + 1]), MEMBER) ~= 0 then rooms[#rooms + 1] = all[index] end
  end
  return rooms
end
