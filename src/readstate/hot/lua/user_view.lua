-- One user's seats at one moment. After the user's keys come the ledgers of the rooms in ARGV[7], in their order.
-- ARGV[6]: which seats: 'all', 'since' or 'rooms'; ARGV[7]: a change number (8 bytes), or rooms (MessagePack).
-- Returns false if the user is not loaded, else {user, rooms whose ledger must be loaded, timeline channels,
-- preferences, seats, apart, counts}; the last four as {room, value, ...}.

local user = 1
if not open(user) then return false end

local seats, apart, counts = {}, {}, {}

local function add(room, raw)
  local flags = byte(raw)
  seats[#seats + 1] = room
  seats[#seats + 1] = raw
  if band(flags, APART) ~= 0 then
    apart[#apart + 1] = room
    apart[#apart + 1] = call('HGET', key_of(user, ASIDE), room) or ''
  end
  if band(flags, COUNTED) ~= 0 then
    counts[#counts + 1] = room
    counts[#counts + 1] = call('HGET', key_of(user, COUNTS), room) or ''
  end
end

-- A ledger that nobody has touched for long must be loaded again.
local function look_after(room, ledger)
  local seat = seat_of(user, room)
  if not seat or band(seat.flags, COUNTED) == 0 then return end
  local row = row_of(user, room, seat)
  if row.missing then return end
  if (seconds - row.touched) * 1000 > ttl then
    unload(user, room, seat)
    keep_seat(user, seat)
  elseif seconds - row.touched >= due then
    touch(row, ledger)
    put_row(user, room, seat, row)
  end
end

if ARGV[6] == 'rooms' then
  for index, room in ipairs(cmsgpack.unpack(ARGV[7])) do
    look_after(room, ledger_key(index))
    local raw = look_at(user, room)
    if raw then add(room, raw) end
  end
elseif ARGV[6] == 'since' then
  local all = call('HGETALL', key_of(user, SEATS))
  for index = 1, #all, 2 do
    if all[index] ~= '' and sub(all[index + 1], SEAT_HEAD - 7, SEAT_HEAD) > ARGV[7] then add(all[index], all[index + 1]) end
  end
else -- with what is loaded, under the empty name
  seats, apart, counts = call('HGETALL', key_of(user, SEATS)), call('HGETALL', key_of(user, ASIDE)), call('HGETALL', key_of(user, COUNTS))
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
  call('HGET', key_of(user, SEATS), ''), unloaded, call('SMEMBERS', key_of(user, TIMELINES)), call('HGETALL', key_of(user, PREFERENCES)),
  seats, apart, counts,
}
