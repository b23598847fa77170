-- Drops one user, also one that is being loaded, or one ledger. ARGV[6]: room, '' for the user. After the user's keys
-- come ledgers to drop with the user. The change number stays, so that it never falls.
-- Returns 1.
local user = 1
open(user)
if ARGV[6] == '' then
  call('DEL', key_of(user, LOADING))
  for index = WIDTH + 1, #KEYS do call('UNLINK', KEYS[index]) end
  if number[user] > 0 then
    for family = SEATS, TIMELINES do call('UNLINK', key_of(user, family)) end
    call('UNLINK', KEYS[WIDTH])
    call('HSET', key_of(user, SEATS), '', pack(USER, 0, number[user], 0, 0, used[user]))
    call('PEXPIRE', key_of(user, SEATS), ttl)
  end
  return 1
end
local seat = loaded[user] and seat_of(user, ARGV[6])
if seat and band(seat.flags, MEMBER) ~= 0 then
  unload(user, ARGV[6], seat)
  keep_seat(user, seat)
  close()
end
return 1
