-- One user as a whole, with the state in some rooms, in those that have changed, or in all.
-- ARGV[6]: which: 'rooms', 'since' or 'all'; ARGV[7]: rooms (MessagePack), or a change number (8 bytes).
-- Returns false if the user is not loaded, else {marker, rooms whose ledger must be loaded, timeline channels,
-- preferences, user rooms, apart, counts}; the last four as {room, value, ...}, but for 'rooms' the last three as in
-- user_rooms.lua.
return function()
  begin(8)
  local user = 1
  if not open(user) then return false end

  local user_rooms, apart, counts = {}, {}, {}

  local function add(room, raw)
    local flags = byte(raw)
    user_rooms[#user_rooms + 1] = room
    user_rooms[#user_rooms + 1] = raw
    if band(flags, APART) ~= 0 then
      apart[#apart + 1] = room
      apart[#apart + 1] = call('HGET', key_of(user, READ_APART), room) or ''
    end
    if band(flags, COUNTED) ~= 0 then
      counts[#counts + 1] = room
      counts[#counts + 1] = call('HGET', key_of(user, COUNTS), room) or ''
    end
  end

  if ARGV[6] == 'rooms' then
    user_rooms, counts, apart = room_states(cmsgpack.unpack(ARGV[7]))
  elseif ARGV[6] == 'since' then
    local all = call('HGETALL', key_of(user, USER_ROOMS))
    for index = 1, #all, 2 do
      if all[index] ~= '' and sub(all[index + 1], USER_ROOM_HEAD - 7, USER_ROOM_HEAD) > ARGV[7] then
        add(all[index], all[index + 1])
      end
    end
  elseif ARGV[6] == 'all' then -- with the marker, under the empty name
    user_rooms, apart = call('HGETALL', key_of(user, USER_ROOMS)), call('HGETALL', key_of(user, READ_APART))
    counts = call('HGETALL', key_of(user, COUNTS))
  end

  local unloaded = {}
  if missing[user] > 0 then
    local all = call('HGETALL', key_of(user, COUNTS))
    for index = 1, #all, 2 do
      if band(byte(all[index + 1]), MISSING + TIMELINE) == MISSING then unloaded[#unloaded + 1] = all[index] end
    end
  end
  close()
  return {
    call('HGET', key_of(user, USER_ROOMS), ''), unloaded, call('SMEMBERS', key_of(user, TIMELINES)),
    call('HGETALL', key_of(user, PREFERENCES)), user_rooms, apart, counts,
  }
end
