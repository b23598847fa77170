-- Applies hot updates, in order. Follows `hot_updates.lua`, which `user_install` shares.
-- ARGV[6]: updates, ARGV[7]: items, one per user that an update goes to (both MessagePack).
-- An update is {kind, room, flags of a new user room, ...}:
--   {1, ..., change, seq, at, id ('': nothing to put), seq, id to remove (seq 0: nothing), edit, latest, archived}
--   {2, ..., seq}                                           the user's own message; without seq: a state to merge
--   {3, ..., change, last seq, latest, seq, at, id up to which joining reads}      joined
--   {4, ..., change} left   {5, ..., change} counted by timeline now   {6, ..., change} the channel is gone
--   {7, ..., latest, archived, {change, seq, at, id, ...}}  new messages of a room, in their order
-- An item is {update, user, ledger, own, mention} for 1; {update, user, ledger, epoch, seq, apart (sorted), at, id} for
-- 2 and 3; {update, user, ledger} for the others. For 7 it goes on with which messages are the user's own and which
-- mention the user (both counted from 1), if any.
-- Returns {index of the item in ARGV[7], user room before, apart before, user room after, apart after} for each pointer
-- that moved to a state that the durable store doesn't have.

local moved

-- The same as `merge` in domain/rules.py.
local function merged(index, item, user, room, user_room, ledger, own, reach)
  local epoch, seq, apart = item[4], item[5], packed_all(item[6])
  local was, was_apart = user_room.raw, apart_of(user, room, user_room)
  local e, s, a = user_room.epoch, user_room.seq, was_apart
  if epoch > e then
    e, s, a = epoch, seq, apart
  elseif epoch == e then
    s = math.max(s, seq)
    a = beyond(union(a, apart), s, 4)
  end
  local to_seq, to_at, to_id = seq, item[7], item[8]
  if reach and s < reach[7] then
    s, to_seq, to_at, to_id = reach[7], reach[7], reach[8], reach[9]
    a = beyond(a, s, 4)
  end
  local ids = nil
  if own then
    if own > s then
      local key = packed(own)
      local more = with(a, key, key, 4)
      if a == was_apart then ids = {} end -- the user's own message is in no ledger
      a = more
    elseif a == was_apart then
      ids = {}
    end
  end
  if e == user_room.epoch and s == user_room.seq and a == was_apart then return end
  local at, id = user_room.at, user_room.id
  if s == to_seq then at, id = to_at, to_id end
  set_state(user, room, user_room, ledger, was_apart, e, s, a, at, id, ids)
  if e ~= epoch or s ~= seq or a ~= apart then moved[#moved + 1] = {index, was, was_apart, user_room.raw, a} end
end

local function joined(index, item, user, update)
  local room = update[2]
  local user_room = user_room_of(user, room) or new_user_room(band(update[3], THREAD))
  local joins = update[4] > user_room.change
  if joins then
    user_room.change = update[4]
    reorder(user, room, update[3], update[6])
    set_flags(user, room, user_room, update[3])
    local seq = math.max(item[5], user_room.seq)
    if item[4] ~= user_room.epoch then seq = item[4] > user_room.epoch and item[5] or user_room.seq end
    if seq < update[5] then unload(user, room, user_room) end
    put_user_room(user, user_room)
  end
  merged(index, item, user, room, user_room, ledger_key(item[3]), nil, joins and update)
end

local function restructured(user, update)
  local kind, room = update[1], update[2]
  local user_room = user_room_of(user, room) or new_user_room(band(update[3], THREAD))
  if update[4] <= user_room.change then return end
  user_room.change = update[4]
  reorder(user, room, bor(user_room.flags, TIMELINE), 0)
  if kind == 5 then
    local row = row_of(user, room, user_room)
    local perhaps_unread = row and (row.missing or row.count > 0)
    set_flags(user, room, user_room, bor(user_room.flags, TIMELINE))
    if perhaps_unread and band(user_room.flags, MEMBER) ~= 0 then unload(user, room, user_room) end
  elseif kind == 4 then
    set_flags(user, room, user_room, band(user_room.flags, bnot(MEMBER)))
  else
    set_flags(user, room, user_room, band(user_room.flags, THREAD))
    put_apart(user, room, user_room, '')
    call('HDEL', key_of(user, PREFERENCES), room)
    user_room.flags = band(user_room.flags, bnot(PREFERS))
    user_room.epoch, user_room.seq, user_room.at, user_room.id = user_room.epoch + 1, 0, 0, ''
  end
  put_user_room(user, user_room)
end

-- ------------------------------------------------------------ new messages

local FIELDS = 4 -- of a message

-- A load in flight keeps messages one by one, as `user_install` reads them.
local function keep_for_load(user, update, own, named)
  local loading = key_of(user, LOADING)
  if call('EXISTS', loading) == 0 then return end
  local messages = update[6]
  for index = 1, #messages / FIELDS do
    local at = (index - 1) * FIELDS
    local message = {
      1, update[2], update[3], messages[at + 1], messages[at + 2], messages[at + 3], messages[at + 4], 0, '', false,
      update[4], update[5],
    }
    call('RPUSHX', loading, cmsgpack.pack({message, own and own[index] or false, named and named[index] or false}))
  end
end

-- Adds all messages of an update to a ledger: none is the user's own, read, or a mention.
local function put_all(row, ledger, update)
  local messages, was = update[6], row.count
  if not update.scored then -- the arguments of ZADD, the same for all users
    local scored = {}
    for at = 1, #messages, FIELDS do
      scored[#scored + 1] = text(messages[at + 2])
      scored[#scored + 1] = messages[at + 3]
    end
    update.scored = scored
  end
  if was == 0 then call('DEL', ledger) end -- remains of an earlier ledger
  row.count = was + call('ZADD', ledger, unpack(update.scored))
  if was > 0 and call('ZCARD', ledger) ~= row.count then
    row.missing = true -- the server has lost the ledger
    return
  end
  if was == 0 or messages[3] < row.first_at then
    row.first_seq, row.first_at, row.first_id = messages[2], messages[3], messages[4]
  end
  cut(row, ledger)
  if was == 0 or seconds - row.touched >= due then touch(row, ledger) end
end

local function put_each(user, room, user_room, row, ledger, update, own, named, filled)
  local messages, apart = update[6], apart_of(user, room, user_room)
  local timeline = band(user_room.flags, TIMELINE) ~= 0
  for index = 1, #messages / FIELDS do
    local at = (index - 1) * FIELDS
    local seq, mention = messages[at + 2], named and named[index] or false
    local is_read = seq <= user_room.seq or has(apart, packed(seq), 4)
    if messages[at + 1] > filled and not (own and own[index]) and not is_read and (mention or row or not timeline) then
      row = row or new_row()
      if row.missing then return row end
      put_in(user_room, row, ledger, seq, messages[at + 3], messages[at + 4], mention)
    end
  end
  return row
end

local function positions(list)
  if not list or #list == 0 then return nil end
  local found = {}
  for _, index in ipairs(list) do found[index] = true end
  return found
end

-- The same as `fan_out` for each message, but the user room and the row are read and written once.
local function came(user, update, item)
  local room, messages = update[2], update[6]
  local own, named = positions(item[4]), positions(item[5])
  if not loaded[user] then return keep_for_load(user, update, own, named) end
  local change = messages[#messages - FIELDS + 1]
  local user_room = user_room_of(user, room)
  if not user_room or change <= user_room.change or band(user_room.flags, MEMBER) == 0 then return end
  local row = row_of(user, room, user_room)
  local filled = math.max(user_room.change, row and row.filled or 0) -- what the ledger includes
  if not (row and row.missing) then
    local special = own or named or band(user_room.flags, TIMELINE + APART) ~= 0
    if special or messages[1] <= filled or messages[2] <= user_room.seq then
      row = put_each(user, room, user_room, row, ledger_key(item[3]), update, own, named, filled)
    else
      row = row or new_row()
      put_all(row, ledger_key(item[3]), update)
    end
  end
  if band(user_room.flags, TIMELINE) == 0 then reorder(user, room, user_room.flags, update[4]) end
  local flags = band(user_room.flags, bnot(ARCHIVED))
  user_room.flags = update[5] and bor(flags, ARCHIVED) or flags
  user_room.change = change
  if row then
    row.latest = update[4]
    put_row(user, room, user_room, row)
  end
  put_user_room(user, user_room)
end

return function()
  begin(8)
  local updates = cmsgpack.unpack(ARGV[6])
  moved = {}
  for index, item in ipairs(cmsgpack.unpack(ARGV[7])) do
    local update = updates[item[1]]
    local user = item[2]
    open(user, update[2])
    local kind = update[1]
    if kind == 7 then
      came(user, update, item)
    elseif kind == 1 then
      fan_out(user, update, item[4], item[5], item[3])
    elseif not loaded[user] then
      call('DEL', key_of(user, LOADING)) -- a load in flight is too old
    elseif kind == 2 then
      local room = update[2]
      local user_room = user_room_of(user, room) or new_user_room(band(update[3], THREAD))
      merged(index, item, user, room, user_room, ledger_key(item[3]), update[4])
    elseif kind == 3 then
      joined(index, item, user, update)
    else
      restructured(user, update)
    end
  end
  close()
  return moved
end
