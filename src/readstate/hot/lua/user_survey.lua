-- What may be unread for one user: returns {counts, preferences}, each {room, value, ...}; false: not loaded.
local user = open(1)
if not user.loaded then return false end
close()
return {call('HGETALL', user.counts), call('HGETALL', user.preferences)}
