-- Installs loaded ledgers. ARGV[6]: loads (MessagePack), each {user, ledger, room, epoch, change, floor, entries, seq,
-- apart (sorted)}, an entry being {seq, at, id, mention}; oldest first. Epoch, seq and apart are the read state of the
-- query to the durable store.
-- Returns for each load 1, or 0 (load again) if a newer change or another epoch has passed, or if a message is unread
-- again that was read at the time of the query.
return function()
  begin(5)
  local CHUNK = 2000
  local answers = {}

  local function fill(user_room, row, ledger, entries, apart)
    local timeline, values, named = band(user_room.flags, TIMELINE) ~= 0, {}, {}
    call('DEL', ledger)
    row.count, row.first_seq, row.first_at, row.first_id = 0, 0, 0, ''
    for _, entry in ipairs(entries) do
      local seq, at, id = entry[1], entry[2], entry[3]
      if seq > user_room.seq and not has(apart, packed(seq), 4) then
        if row.count == 0 then row.first_seq, row.first_at, row.first_id = seq, at, id end
        row.count = row.count + 1
        if entry[4] then named[#named + 1] = packed(seq) .. pack('>I8', at) end
        if not timeline then
          values[#values + 1] = at
          values[#values + 1] = id
          if #values >= CHUNK then
            call('ZADD', ledger, unpack(values))
            values = {}
          end
        end
      end
    end
    if #values > 0 then call('ZADD', ledger, unpack(values)) end
    row.named = table.concat(named)
    touch(row, ledger)
  end

  local function take(load)
    local room = load[3]
    local user = load[1]
    local user_room = open(user, room) and user_room_of(user, room)
    if not user_room then return 0 end
    if band(user_room.flags, MEMBER) == 0 then return 1 end
    local row = row_of(user, room, user_room) or new_row()
    if load[5] < math.max(user_room.change, row.filled) or load[4] ~= user_room.epoch then return 0 end
    local apart = apart_of(user, room, user_room)
    if load[8] > user_room.seq then return 0 end
    for _, seq in ipairs(load[9]) do
      if seq > user_room.seq and not has(apart, packed(seq), 4) then return 0 end
    end
    fill(user_room, row, ledger_key(load[2]), load[7], apart)
    row.missing, row.filled, row.floor_at = false, load[5], 0
    row.floor = load[6] > user_room.seq and load[6] or 0
    row.latest = tonumber(call('ZSCORE', key_of(user, INBOX), room) or '0')
    put_row(user, room, user_room, row)
    keep_user_room(user, user_room)
    return 1
  end

  for index, load in ipairs(cmsgpack.unpack(ARGV[6])) do answers[index] = take(load) end
  close()
  return answers
end
