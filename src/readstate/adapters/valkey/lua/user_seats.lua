-- One user's seats in some rooms. ARGV[6]: rooms (MessagePack).
-- Returns {what is loaded, seats, counts, apart}, the last three as seats.lua says.
return {call('HGET', key_of(1, SEATS), ''), seats_in(cmsgpack.unpack(ARGV[6]))}
