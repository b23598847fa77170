-- Drops one user (also one that is being loaded), or one ledger. ARGV[6]: room, '' for the user.
-- The change number stays, so that it never goes back.
local user = open(1)
if ARGV[6] == '' then
  call('DEL', user.loading)
  if call('EXISTS', user.marker) == 1 then
    call('UNLINK', user.seats, user.apart, user.counts, user.inbox, user.preferences, user.timelines)
    call('SET', user.marker, pack(USER, 0, user.number, 0, 0, user.used), 'KEEPTTL')
  end
  return 1
end
local seat = user.loaded and seat_of(user, ARGV[6])
if seat and band(seat.flags, MEMBER) ~= 0 then
  unload(user, ARGV[6], seat)
  keep_seat(user, ARGV[6], seat)
  close()
end
return 1
