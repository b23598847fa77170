-- Drops one user, also one that is being loaded, or one ledger. ARGV[6]: room, '' for the user. After the user's keys
-- come ledgers to drop with the user. The change number stays, so that it never falls.
-- Returns 1.
return function()
  check_deadline()
  begin(8)
  local user = 1
  open(user)
  if ARGV[6] == '' then
    call('DEL', key_of(user, LOADING))
    for index = WIDTH + 1, #KEYS do call('UNLINK', KEYS[index]) end
    if number[user] > 0 then
      for family = USER_ROOMS, TIMELINES do call('UNLINK', key_of(user, family)) end
      call('UNLINK', KEYS[WIDTH])
      call('HSET', key_of(user, USER_ROOMS), '', pack(USER, 0, number[user], 0, 0, used[user]))
      call('PEXPIRE', key_of(user, USER_ROOMS), ttl)
    end
    return 1
  end
  local user_room = loaded[user] and user_room_of(user, ARGV[6])
  if user_room and band(user_room.flags, MEMBER) ~= 0 then
    unload(user, ARGV[6], user_room)
    keep_user_room(user, user_room)
    close()
  end
  return 1
end
