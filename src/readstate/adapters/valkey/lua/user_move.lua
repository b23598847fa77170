-- Applies reads of members, in order; `user_read` does most of them in a shorter way.
-- ARGV[6]: moves (MessagePack), each {kind, user, ledger, room, ...}:
--   {1, ..., seq, at, id, epoch or -1, apart (sorted) and ids, or neither}   read up to a position, and apart seqs
--   {2, ..., seq, at, id of the position before it, epoch or -1, own (sorted)}   mark unread from seq on
--   {3, ..., seq, at, id, apart before (sorted), epoch after, seq after, apart after (sorted)}   undo
-- Returns for each move 0 (user not loaded), 1 (not a member), or a string: unread or -1 (4 bytes), length of the user
-- room before (1 byte), the user room before, the user room after or nothing. Where apart or preferences are set, it is
-- {that string, apart before, apart after, preferences or ''}.

-- The same as `next_epoch` in domain/rules.py.
local function next_epoch(epoch) return math.max(epoch + 1, generation * 1048576) end

-- The same as `advance` (1), `rewind` (2) and `give_back` (3) in domain/rules.py.
local function target(move, user_room, apart)
  local kind = move[1]
  if kind == 1 then
    if move[8] >= 0 and move[8] ~= user_room.epoch then return nil end
    local seq = math.max(user_room.seq, move[5])
    local list = beyond(union(apart, packed_all(move[9] or {})), seq, 4)
    if seq == user_room.seq and list == apart then return nil end
    if seq == user_room.seq then return user_room.epoch, seq, list, user_room.at, user_room.id end
    return user_room.epoch, seq, list, move[6], move[7]
  elseif kind == 2 then
    if move[8] >= 0 and move[8] ~= user_room.epoch then return nil end
    local seq = math.min(user_room.seq, move[5] - 1)
    local kept = sub(apart, 1, before(apart, packed(move[5]), 4) * 4)
    local list = union(kept, beyond(packed_all(move[9]), seq, 4))
    if seq == user_room.seq then return next_epoch(user_room.epoch), seq, list, user_room.at, user_room.id end
    return next_epoch(user_room.epoch), seq, list, move[6], move[7]
  else
    if user_room.epoch ~= move[9] or user_room.seq ~= move[10] then return nil end
    local list, after = packed_all(move[8]), packed_all(move[11])
    for at = 1, #apart, 4 do -- messages read one by one since then stay read
      local key = sub(apart, at, at + 3)
      if not has(after, key, 4) then list = with(list, key, key, 4) end
    end
    return next_epoch(user_room.epoch), move[5], list, move[6], move[7]
  end
end

local function apply(move)
  local room = move[4]
  local user = move[2]
  if not open(user, room) then return 0 end
  local user_room = user_room_of(user, room)
  if not user_room or band(user_room.flags, MEMBER) == 0 then return 1 end
  local was, apart = user_room.raw, apart_of(user, room, user_room)
  local epoch, seq, list, at, id = target(move, user_room, apart)
  local is, now_apart = '', apart
  if epoch then
    set_state(user, room, user_room, ledger_key(move[3]), apart, epoch, seq, list, at, id, move[10])
    is, now_apart = user_room.raw, list
  end
  local head = pack('>i4B', size_of(user, room, user_room), #was) .. was
  if apart == '' and now_apart == '' and band(user_room.flags, PREFERS) == 0 then return head .. is end
  local preferences = ''
  if band(user_room.flags, PREFERS) ~= 0 then preferences = call('HGET', key_of(user, PREFERENCES), room) or '' end
  return {head .. is, apart, now_apart, preferences}
end

return function()
  check_deadline()
  begin(5)
  local answers = {}
  for index, move in ipairs(cmsgpack.unpack(ARGV[6])) do
    answers[index] = apply(move)
  end
  close()
  return answers
end
