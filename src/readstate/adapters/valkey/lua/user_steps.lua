-- Applies hot updates (`step` in the code), in order. Follows `steps.lua`, which `user_install` shares.
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

local steps, moved = cmsgpack.unpack(ARGV[6]), {}

local function merged(index, item, user, room, seat, ledger, own, reach)
  local epoch, seq, apart = item[4], item[5], packed_all(item[6])
  local was, was_apart = seat.raw, apart_of(user, room, seat)
  local e, s, a = seat.epoch, seat.seq, was_apart
  if epoch > e then
    e, s, a = epoch, seq, apart
  elseif epoch == e then
    s = math.max(s, seq)
    a = beyond(union(a, apart), s, 4)
  end
  local place_seq, place_at, place_id = seq, item[7], item[8]
  if reach and s < reach[7] then
    s, place_seq, place_at, place_id = reach[7], reach[7], reach[8], reach[9]
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
  if e == seat.epoch and s == seat.seq and a == was_apart then return end
  local at, id = seat.at, seat.id
  if s == place_seq then at, id = place_at, place_id end
  set_state(user, room, seat, ledger, was_apart, e, s, a, at, id, ids)
  if e ~= epoch or s ~= seq or a ~= apart then moved[#moved + 1] = {index, was, was_apart, seat.raw, a} end
end

local function joined(index, item, user, step)
  local room = step[2]
  local seat = seat_of(user, room) or new_seat(band(step[3], THREAD))
  local joins = step[4] > seat.change
  if joins then
    seat.change = step[4]
    reorder(user, room, step[3], step[6])
    set_flags(user, room, seat, step[3])
    local seq = math.max(item[5], seat.seq)
    if item[4] ~= seat.epoch then seq = item[4] > seat.epoch and item[5] or seat.seq end
    if seq < step[5] then unload(user, room, seat) end
    put_seat(user, seat)
  end
  merged(index, item, user, room, seat, ledger_key(item[3]), nil, joins and step)
end

local function restructured(user, step)
  local kind, room = step[1], step[2]
  local seat = seat_of(user, room) or new_seat(band(step[3], THREAD))
  if step[4] <= seat.change then return end
  seat.change = step[4]
  reorder(user, room, bor(seat.flags, TIMELINE), 0)
  if kind == 5 then
    local row = row_of(user, room, seat)
    local perhaps_unread = row and (row.missing or row.count > 0)
    set_flags(user, room, seat, bor(seat.flags, TIMELINE))
    if perhaps_unread and band(seat.flags, MEMBER) ~= 0 then unload(user, room, seat) end
  elseif kind == 4 then
    set_flags(user, room, seat, band(seat.flags, bnot(MEMBER)))
  else
    set_flags(user, room, seat, band(seat.flags, THREAD))
    put_apart(user, room, seat, '')
    call('HDEL', key_of(user, PREFERENCES), room)
    seat.flags = band(seat.flags, bnot(PREFERS))
    seat.epoch, seat.seq, seat.at, seat.id = seat.epoch + 1, 0, 0, ''
  end
  put_seat(user, seat)
end

for index, item in ipairs(cmsgpack.unpack(ARGV[7])) do
  local step = steps[item[1]]
  local user = item[2]
  open(user, step[2])
  local kind = step[1]
  if kind == 1 then
    fan(user, step, item[4], item[5], item[3])
  elseif not loaded[user] then
    call('DEL', key_of(user, LOADING)) -- a load in flight is too old
  elseif kind == 2 then
    local room = step[2]
    local seat = seat_of(user, room) or new_seat(band(step[3], THREAD))
    merged(index, item, user, room, seat, ledger_key(item[3]), step[4])
  elseif kind == 3 then
    joined(index, item, user, step)
  else
    restructured(user, step)
  end
end
close()
return moved
