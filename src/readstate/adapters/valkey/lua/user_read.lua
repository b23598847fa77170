-- The short way of by far the most reads: up to a position, by a member with nothing apart and no preferences in the
-- room. Reads are applied in order. Any other read, and all later ones of that user, are left for `user_move`.
-- KEYS: read-pointer, unread-counts and read-at of each user, then a ledger for each read.
-- ARGV[6]: reads, each packed: user, epoch or -1, seq, at, length of the id, length of the room's name, id, name.
-- Returns for each read 0 (user not loaded), 1 (not a member), 2 (left for `user_move`), or a string: unread or -1
-- (4 bytes), the new change number or 0 (8 bytes), the user room before.

local READ = '>I2i8I4I8I2I2'
local ANSWER = '>i4I8'
local COUNT_KEY = 2
local LEFT = 2

-- Cuts a ledger at a position. Returns how many messages are left; nil: this is not for the short way.
local function cut(user, room, ledger, change, seq, at)
  local counts = KEYS[(user - 1) * WIDTH + COUNT_KEY]
  local raw = call('HGET', counts, room)
  if not raw then return nil end
  local flags, count, touched, filled, low, low_at, latest, _, _, length = unpacked(COUNT, raw)
  if band(flags, MISSING + TIMELINE) ~= 0 or filled > change then return nil end
  if at == 0 or latest == 0 or at < low_at or seq < low then return nil end
  if at >= latest then
    call('DEL', ledger)
    call('HDEL', counts, room)
    return 0
  end
  if low > 0 or low_at > 0 or #raw > COUNT_HEAD + length then return nil end
  local gone = call('ZREMRANGEBYSCORE', ledger, '-inf', at)
  local first = call('ZRANGE', ledger, 0, 0, 'WITHSCORES')
  if not first[1] or gone >= count then -- the server has lost the ledger, or something else has changed it
    call('HSET', counts, room, pack(COUNT, flags + MISSING, 0, touched, filled, 0, 0, latest, 0, 0, 0)) -- as `unload`
    missing[user], dirty[user] = missing[user] + 1, true
    return nil
  end
  if gone == 0 then return count end
  call('HSET', counts, room, pack(COUNT, flags, count - gone, touched, filled, 0, 0, latest, 0, tonumber(first[2]),
    #first[1]) .. first[1])
  return count - gone
end

-- The size of a ledger that has a row, as `size_of`.
local function size_by_row(user, room)
  local raw = call('HGET', KEYS[(user - 1) * WIDTH + COUNT_KEY], room)
  if not raw then return -1 end
  local flags, count, _, _, low, low_at = unpacked(COUNT, raw)
  if band(flags, MISSING) ~= 0 or low > 0 or low_at > 0 then return -1 end
  return count
end

local function read(user, room, ledger, wanted, seq, at, id)
  if not open(user, room) then return 0 end
  local raw = read_user_room(user, room)
  if not raw then return 1 end
  local flags, epoch, known, _, change = unpacked(USER_ROOM, raw)
  if band(flags, MEMBER) == 0 then return 1 end
  if band(flags, APART + PREFERS) ~= 0 then return LEFT end
  local is_counted = band(flags, COUNTED) ~= 0
  if seq <= known or (wanted >= 0 and wanted ~= epoch) then
    return pack(ANSWER, is_counted and size_by_row(user, room) or 0, 0) .. raw
  end
  local left = 0
  if is_counted then
    left = cut(user, room, ledger, change, seq, at)
    if not left then return LEFT end
    if left == 0 then flags = flags - COUNTED end
  end
  local changed = number[user] + 1
  local new = pack(USER_ROOM, flags, epoch, seq, at, change, changed) .. id
  number[user], dirty[user], cached_user_room[user], unsaved[user] = changed, true, new, true
  note_move(user, room, epoch, seq)
  return pack(ANSWER, left, changed) .. raw
end

return function()
  check_deadline()
  begin(3)
  local reads, position, first_ledger = ARGV[6], 1, 3 * user_count
  local answers, is_left = {}, {}
  for index = 1, #KEYS - first_ledger do
    local user, epoch, seq, at, id_length, room_length, start = unpacked(READ, reads, position)
    local name = start + id_length
    position = name + room_length
    local answer = LEFT
    if not is_left[user] then
      local room, id = sub(reads, name, position - 1), sub(reads, start, name - 1)
      answer = read(user, room, KEYS[first_ledger + index], epoch, seq, at, id)
      if answer == LEFT then is_left[user] = true end
    end
    answers[index] = answer
  end
  close()
  return answers
end
