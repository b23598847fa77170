-- One user's state in some rooms. ARGV[6]: rooms (MessagePack).
-- Returns {marker, user rooms, counts, apart}, the last three as in seats.lua.
return {call('HGET', key_of(1, SEATS), ''), seats_in(cmsgpack.unpack(ARGV[6]))}
