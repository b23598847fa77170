-- Applies hot updates, in order. Follows `hot_updates.lua`, which `user_install` shares.
-- ARGV[6]: updates, ARGV[7]: items, one per user that an update goes to (both MessagePack).
-- An update is {kind, room, flags of a new user room, ...}:
--   {1, ..., change, seq, at, id ('': nothing to put), seq, id to remove (seq 0: nothing), edit, latest, archived}
--   {2, ..., seq}                                           the user's own message; without seq: a state to merge
--   {3, ..., change, last seq, latest, seq, at, id up to which joining reads}      joined
--   {4, ..., change} left   {5, ..., change} counted by timeline now   {6, ..., change} the channel is gone
-- An item is {update, user, ledger, own, mention} for 1; {update, user, ledger, epoch, seq, apart (sorted), at, id} for
-- 2 and 3; {update, user, ledger} for the others.
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

return function()
  begin(8)
  local updates = cmsgpack.unpack(ARGV[6])
  moved = {}
  for index, item in ipairs(cmsgpack.unpack(ARGV[7])) do
    local update = updates[item[1]]
    local user = item[2]
    open(user, update[2])
    local kind = update[1]
    if kind == 1 then
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
