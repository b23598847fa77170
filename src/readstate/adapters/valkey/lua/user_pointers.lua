-- All of one user's rooms, without noting a use: this read does not delay expiry.
-- Returns {user rooms, apart}, each {room, value, ...}, with the marker under the empty name; false: not loaded.
return function()
  begin(2)
  local user = 1
  if not open(user) then return false end
  return {call('HGETALL', key_of(user, USER_ROOMS)), call('HGETALL', key_of(user, READ_APART))}
end
