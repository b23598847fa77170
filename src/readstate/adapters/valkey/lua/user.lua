-- The layout of a user's state in one slot, shared by the functions `user_…`.
-- A `row` is the summary of a ledger.
--
-- KEYS begin with WIDTH keys for each user, the first ones of these (WIDTH is the function's own):
--   1 read-pointer  hash: room -> user room (flags, epoch, seq, at, change of the room, change number, message id);
--                   '' -> marker (generation, change number, complete since, missing ledgers, last used)
--   2 read-apart    hash: room -> seqs read one by one beyond the pointer (sorted, 4 bytes each)
--   3 unread-counts hash: room -> row; a room without one has nothing unread
--   4 preferences   hash: room -> preferences (scripts use only their change number)
--   5 inbox         sorted set: channels counted by ledger, score = time of the latest message
--   6 timelines     set: channels counted by timeline
--   7 loading       list: the ticket of a load in flight, its generation, and the messages that arrived meanwhile
--   8 read-at       hash: room -> when the pointer last moved (epoch, seq, ms). Expires an hour after it was made, or
--                   with the user: the durable store has the times by then. A script that gets this
--                   key gets it as the user's last key
-- Then come ledgers (unread:{user}:room), sorted sets: id of the message, score = its time.
-- ARGV[1] generation, [2] now (ms), [3] ttl (ms), [4] most ids in a ledger, [5] how many users.

local sub, byte, pack, unpacked, band, bor, bnot, floor -- set by the first call: a load of the library sees no modules

local MEMBER, TIMELINE, THREAD, ARCHIVED, COUNTED, APART, MISSING, PREFERS = 1, 2, 4, 8, 16, 32, 64, 128
local USER = '>I8I8I8I4I4'
local USER_ROOM, USER_ROOM_HEAD = '>BI8I4I8I4I8', 33
local COUNT, COUNT_HEAD = '>BI4I4I4I4I8I8I4I8B', 46
local NAMED = 12 -- bytes of a mention: seq and time
local MOVED = '>I8I4I8'
local MOVED_MS = 3600000

local WIDTH, generation, now, ttl, cap, user_count
local seconds
local due -- seconds after which a use is noted again

-- ------------------------------------------------------------ sorted lists of numbers in a string

local function packed(seq) return pack('>I4', seq) end

-- Packs sorted numbers into a list.
local function packed_all(seqs)
  if #seqs == 0 then return '' end
  local parts = {}
  for index, seq in ipairs(seqs) do parts[index] = packed(seq) end
  return table.concat(parts)
end

-- How many items of a list are before a key. Items are `width` bytes long and begin with their key.
local function before(list, key, width)
  local low, high = 0, #list / width
  while low < high do
    local middle = floor((low + high) / 2)
    if sub(list, middle * width + 1, middle * width + 4) < key then low = middle + 1 else high = middle end
  end
  return low
end

local function has(list, key, width)
  if list == '' then return false end
  local at = before(list, key, width) * width
  return sub(list, at + 1, at + 4) == key
end

local function with(list, key, item, width)
  if list == '' or sub(list, -width, -width + 3) < key then return list .. item end
  local at = before(list, key, width) * width
  if sub(list, at + 1, at + 4) == key then return list end
  return sub(list, 1, at) .. item .. sub(list, at + 1)
end

local function without(list, key, width)
  if list == '' then return list end
  local at = before(list, key, width) * width
  if sub(list, at + 1, at + 4) ~= key then return list end
  return sub(list, 1, at) .. sub(list, at + width + 1)
end

-- The part of a list after a seq.
local function beyond(list, seq, width)
  if list == '' then return list end
  return sub(list, before(list, packed(seq + 1), width) * width + 1)
end

local function union(list, more)
  if list == '' then return more end
  for at = 1, #more, 4 do
    local key = sub(more, at, at + 3)
    list = with(list, key, key, 4)
  end
  return list
end

-- ------------------------------------------------------------ users

-- A user is an index within the call. These parallel tables hold the state, so that none is allocated per user.
local loaded, number, since, missing, used
local cached_room, cached_user_room, unsaved, dirty

-- Every call begins with this.
local function begin(width)
  if not sub then
    sub, byte, pack, unpacked = string.sub, string.byte, struct.pack, struct.unpack
    band, bor, bnot, floor = bit.band, bit.bor, bit.bnot, math.floor
  end
  WIDTH = width
  generation, now, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  cap, user_count = tonumber(ARGV[4]), tonumber(ARGV[5])
  seconds, due = floor(now / 1000), ttl / 16000
  loaded, number, since, missing, used = {}, {}, {}, {}, {}
  cached_room, cached_user_room, unsaved, dirty = {}, {}, {}, {}
end

local USER_ROOMS, READ_APART, COUNTS, PREFERENCES, INBOX, TIMELINES, LOADING = 1, 2, 3, 4, 5, 6, 7

local function key_of(user, family) return KEYS[(user - 1) * WIDTH + family] end

local function ledger_key(index) return KEYS[user_count * WIDTH + index] end

local function take_marker(user, raw)
  if not raw then
    loaded[user], number[user], since[user], missing[user], used[user] = false, 0, 0, 0, 0
    return
  end
  local known
  known, number[user], since[user], missing[user], used[user] = unpacked(USER, raw)
  loaded[user] = is_current(known, generation)
end

-- Reads a user's marker and the state in a room, in one call. Returns whether the user is loaded.
local function open(user, room)
  if loaded[user] ~= nil then return loaded[user] end
  if room and room ~= '' then -- no room has an empty name
    local both = call('HMGET', key_of(user, USER_ROOMS), '', room)
    cached_room[user], cached_user_room[user] = room, both[2]
    take_marker(user, both[1])
  else
    take_marker(user, call('HGET', key_of(user, USER_ROOMS), ''))
  end
  return loaded[user]
end

-- Without activity, all keys of a user expire together; the one with the marker expires first.
local LATER = 1000

local function renew(user)
  used[user] = seconds
  call('PEXPIRE', key_of(user, USER_ROOMS), ttl)
  for family = READ_APART, TIMELINES do call('PEXPIRE', key_of(user, family), ttl + LATER) end
end

-- Gives a key that may be new the expiry of the others.
local function expire_with(user, key)
  if call('PTTL', key) == -1 then call('PEXPIRE', key, call('PTTL', key_of(user, USER_ROOMS)) + LATER) end
end

-- Must be called last: writes what changed for the users that were opened.
local function close()
  for user = 1, user_count do
    if loaded[user] then
      local stale = WIDTH > TIMELINES and seconds - used[user] >= due
      if stale then renew(user) end
      if dirty[user] or stale then
        local marker = pack(USER, generation, number[user], since[user], missing[user], used[user])
        if unsaved[user] then
          call('HSET', key_of(user, USER_ROOMS), '', marker, cached_room[user], cached_user_room[user])
        else
          call('HSET', key_of(user, USER_ROOMS), '', marker)
        end
      elseif unsaved[user] then
        call('HSET', key_of(user, USER_ROOMS), cached_room[user], cached_user_room[user])
      end
    end
  end
end

local function put_field(user, family, field, value)
  local hash = key_of(user, family)
  if call('HSET', hash, field, value) == 1 then expire_with(user, hash) end
end

-- ------------------------------------------------------------ user rooms

-- The user room that was read last is cached. It is written when another one is read, or in `close`.
local function read_user_room(user, room)
  if cached_room[user] == room then return cached_user_room[user] end
  if unsaved[user] then
    call('HSET', key_of(user, USER_ROOMS), cached_room[user], cached_user_room[user])
    unsaved[user] = false
  end
  cached_room[user], cached_user_room[user] = room, room ~= '' and call('HGET', key_of(user, USER_ROOMS), room)
  return cached_user_room[user]
end

local function user_room_of(user, room)
  local raw = read_user_room(user, room)
  if not raw then return nil end
  local flags, epoch, seq, at, change, changed = unpacked(USER_ROOM, raw)
  return {
    raw = raw, id = sub(raw, USER_ROOM_HEAD + 1), flags = flags, epoch = epoch, seq = seq, at = at, change = change,
    number = changed,
  }
end

local function pack_user_room(user_room)
  local head = pack(USER_ROOM, user_room.flags, user_room.epoch, user_room.seq, user_room.at, user_room.change,
    user_room.number)
  user_room.raw = head .. user_room.id
  return user_room.raw
end

local function new_user_room(flags)
  local user_room = {flags = flags, epoch = 0, seq = 0, at = 0, change = 0, number = 0, id = ''}
  pack_user_room(user_room)
  return user_room
end

-- Keeps the cached user room. It has not changed for the user: only its flags about other keys may differ.
local function keep_user_room(user, user_room)
  cached_user_room[user], unsaved[user] = pack_user_room(user_room), true
end

-- Keeps the cached user room, which has changed, under a new change number.
local function put_user_room(user, user_room)
  number[user] = number[user] + 1
  dirty[user] = true
  user_room.number = number[user]
  keep_user_room(user, user_room)
end

local function apart_of(user, room, user_room)
  if band(user_room.flags, APART) == 0 then return '' end
  return call('HGET', key_of(user, READ_APART), room) or ''
end

local function put_apart(user, room, user_room, list)
  if list ~= '' then
    put_field(user, READ_APART, room, list)
    user_room.flags = bor(user_room.flags, APART)
  elseif band(user_room.flags, APART) ~= 0 then
    call('HDEL', key_of(user, READ_APART), room)
    user_room.flags = band(user_room.flags, bnot(APART))
  end
end

-- ------------------------------------------------------------ summaries of ledgers

-- `filled`: the change of the room that the ledger includes, if it was loaded ahead of its user room. `floor`,
-- `floor_at`: the newest seq, or time, that was dropped at the cap. `first_seq` is 0 where it is not known. `named`:
-- mentions, by seq.
local function new_row()
  return {
    count = 0, touched = seconds, filled = 0, floor = 0, floor_at = 0, latest = 0, first_seq = 0, first_at = 0,
    first_id = '', named = '', missing = false, was_missing = false,
  }
end

local function row_of(user, room, user_room)
  if band(user_room.flags, COUNTED) == 0 then return nil end
  local raw = call('HGET', key_of(user, COUNTS), room)
  if not raw then
    local row = new_row()
    row.missing, row.was_missing = true, true
    return row
  end
  local flags, count, touched, filled, low, low_at, latest, first_seq, first_at, length = unpacked(COUNT, raw)
  local lacks = band(flags, MISSING) ~= 0
  return {
    count = count, touched = touched, filled = filled, floor = low, floor_at = low_at, latest = latest,
    first_seq = first_seq, first_at = first_at, first_id = sub(raw, COUNT_HEAD + 1, COUNT_HEAD + length),
    named = sub(raw, COUNT_HEAD + length + 1), missing = lacks, was_missing = lacks,
  }
end

-- Keeps or removes a row. The caller must keep the user room afterwards.
local function put_row(user, room, user_room, row)
  local timeline = band(user_room.flags, TIMELINE) ~= 0
  if timeline then row.count = #row.named / NAMED end
  if row.count < 0 or (row.count == 0 and (row.floor > 0 or row.floor_at > 0)) then row.missing = true end
  if row.missing then
    row.count, row.floor, row.floor_at, row.first_seq, row.first_at, row.first_id, row.named = 0, 0, 0, 0, 0, '', ''
  end
  if row.missing ~= row.was_missing and not timeline then
    missing[user] = missing[user] + (row.missing and 1 or -1)
    dirty[user] = true
  end
  row.was_missing = row.missing
  if row.missing or row.count > 0 or row.filled > user_room.change then
    local flags = bor(band(user_room.flags, TIMELINE + THREAD + ARCHIVED), row.missing and MISSING or 0)
    put_field(user, COUNTS, room, pack(COUNT, flags, row.count, row.touched, row.filled, row.floor, row.floor_at,
      row.latest, row.first_seq, row.first_at, #row.first_id) .. row.first_id .. row.named)
    user_room.flags = bor(user_room.flags, COUNTED)
  elseif band(user_room.flags, COUNTED) ~= 0 then
    call('HDEL', key_of(user, COUNTS), room)
    user_room.flags = band(user_room.flags, bnot(COUNTED))
  end
end

-- Marks the ledger as not loaded.
local function unload(user, room, user_room)
  local row = row_of(user, room, user_room) or new_row()
  row.missing = true
  put_row(user, room, user_room, row)
end

-- Marks the ledger as empty.
local function drop_row(user, room, user_room)
  local row = row_of(user, room, user_room)
  if row then
    if row.was_missing and band(user_room.flags, TIMELINE) == 0 then
      missing[user] = missing[user] - 1
      dirty[user] = true
    end
    call('HDEL', key_of(user, COUNTS), room)
    user_room.flags = band(user_room.flags, bnot(COUNTED))
  end
end

-- ------------------------------------------------------------ ledgers

local function find_first(row, ledger)
  if row.count == 0 then
    row.first_seq, row.first_at, row.first_id = 0, 0, ''
    return
  end
  local first = call('ZRANGE', ledger, 0, 0, 'WITHSCORES')
  if not first[1] then
    row.missing = true -- the server has lost the ledger
  elseif first[1] ~= row.first_id then
    row.first_seq, row.first_at, row.first_id = 0, tonumber(first[2]), first[1]
  end
end

-- The pointer moves to a position: drops what is up to it, and a floor that it has passed.
local function read_to(user_room, row, ledger, seq, at)
  row.named = beyond(row.named, seq, NAMED)
  if seq >= row.floor then row.floor = 0 end
  if band(user_room.flags, TIMELINE) ~= 0 then return end
  if at == 0 then
    row.missing = true -- the time of the position is not known
    return
  end
  if at >= row.floor_at then row.floor_at = 0 end
  if row.count > 0 then
    row.count = row.count - call('ZREMRANGEBYSCORE', ledger, '-inf', at)
    find_first(row, ledger)
  end
end

-- Removes single messages, by their seqs (packed) and, if known, their ids.
local function take_out(user_room, row, ledger, seqs, ids)
  for at = 1, #seqs, 4 do row.named = without(row.named, sub(seqs, at, at + 3), NAMED) end
  if band(user_room.flags, TIMELINE) ~= 0 or row.count == 0 then return end
  if not ids then
    row.missing = true
    return
  end
  for _, id in ipairs(ids) do row.count = row.count - call('ZREM', ledger, id) end
  find_first(row, ledger)
end

local function touch(row, ledger)
  row.touched = seconds
  call('PEXPIRE', ledger, 2 * ttl)
end

-- Keeps a ledger, which has grown, at its cap.
local function cut(row, ledger)
  if row.count <= cap then return end
  local gone = call('ZPOPMIN', ledger, row.count - cap)
  row.floor_at = tonumber(gone[#gone])
  row.count = cap
  while row.named ~= '' and unpacked('>I8', row.named, 5) <= row.floor_at do row.named = sub(row.named, NAMED + 1) end
  find_first(row, ledger)
end

-- Adds an unread message.
local function put_in(user_room, row, ledger, seq, at, id, mention)
  local key = packed(seq)
  local item = key .. pack('>I8', at)
  if band(user_room.flags, TIMELINE) ~= 0 then
    row.named = mention and with(row.named, key, item, NAMED) or without(row.named, key, NAMED)
    if #row.named / NAMED > cap then
      row.floor = unpacked('>I4', row.named)
      row.named = sub(row.named, NAMED + 1)
    end
    row.touched = seconds
    return
  end
  if row.count == 0 then call('DEL', ledger) end -- remains of an earlier ledger
  local size = row.count + call('ZADD', ledger, at, id)
  if size > 1 and call('ZCARD', ledger) ~= size then
    row.missing = true -- the server has lost the ledger
    return
  end
  row.count = size
  if size == 1 or at < row.first_at then row.first_seq, row.first_at, row.first_id = seq, at, id end
  row.named = mention and with(row.named, key, item, NAMED) or without(row.named, key, NAMED)
  cut(row, ledger)
  if size == 1 or seconds - row.touched >= due then touch(row, ledger) end
end

-- ------------------------------------------------------------ read states

-- Notes when a pointer moved.
local function note_move(user, room, epoch, seq)
  local times = KEYS[user * WIDTH]
  if call('HSET', times, room, pack(MOVED, epoch, seq, now)) == 1 and call('PTTL', times) == -1 then
    call('PEXPIRE', times, math.min(MOVED_MS, ttl))
  end
end

-- Sets the read state. `ids`: the ids of the messages that this reads one by one, if known.
local function set_state(user, room, user_room, ledger, was_apart, epoch, seq, apart, at, id, ids)
  if band(user_room.flags, MEMBER) ~= 0 then -- a user who left has no ledger
    if epoch ~= user_room.epoch then
      unload(user, room, user_room)
    else
      local row = row_of(user, room, user_room)
      if row and not row.missing then
        if seq > user_room.seq then read_to(user_room, row, ledger, seq, at) end
        local new = ''
        for index = 1, #apart, 4 do
          local key = sub(apart, index, index + 3)
          if not has(was_apart, key, 4) then new = new .. key end
        end
        if new ~= '' and not row.missing then take_out(user_room, row, ledger, new, ids) end
        put_row(user, room, user_room, row)
      end
    end
  end
  user_room.epoch, user_room.seq, user_room.at, user_room.id = epoch, seq, at, id
  note_move(user, room, epoch, seq)
  if apart ~= was_apart then put_apart(user, room, user_room, apart) end
  put_user_room(user, user_room)
end

-- The size of a ledger; -1: it must be loaded, or holds only the newest messages.
local function size_of(user, room, user_room)
  local row = row_of(user, room, user_room)
  if not row then return 0 end
  if row.missing or row.floor > 0 or row.floor_at > 0 then return -1 end
  return row.count
end
