-- What may be unread for one user. Returns {counts, preferences}, each {room, value, ...}; false: not loaded.
local user = 1
if not open(user) then return false end
close()
return {call('HGETALL', key_of(user, COUNTS)), call('HGETALL', key_of(user, PREFERENCES))}
