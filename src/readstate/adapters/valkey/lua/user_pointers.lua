-- All seats of one user, without noting a use: what nobody else uses expires as if nobody had looked.
-- Returns {seats, apart}, each {room, value, ...}, the seats with what is loaded under the empty name; false: not loaded.
local user = 1
if not open(user) then return false end
return {call('HGETALL', key_of(user, SEATS)), call('HGETALL', key_of(user, ASIDE))}
