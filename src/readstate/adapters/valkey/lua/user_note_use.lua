-- Notes that ledgers are used; a ledger that was not used for too long must be reloaded.
-- After the user's keys come the ledgers of the rooms in ARGV[6] (MessagePack), in their order.
-- Returns 1, or 0 if the user is not loaded.
return function()
  begin(8)
  local user = 1
  if not open(user) then return 0 end
  for index, room in ipairs(cmsgpack.unpack(ARGV[6])) do
    local user_room = user_room_of(user, room)
    local row = user_room and row_of(user, room, user_room)
    if row and not row.missing and row.count > 0 then
      if (seconds - row.touched) * 1000 > ttl then
        unload(user, room, user_room)
        keep_user_room(user, user_room)
      elseif seconds - row.touched >= due then
        touch(row, ledger_key(index))
        put_row(user, room, user_room, row)
      end
    end
  end
  close()
  return 1
end
