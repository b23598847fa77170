-- What a new message does to users' counts. Each user has one ledger, in the same order.
-- ARGV[6]: channel, ARGV[7]: seq, ARGV[8]: id of the message.
-- Returns {code, epoch, preferences or '', ...}: code 0 nothing, 1 one more, 3 look (see ports.CountDelta).
return function()
  begin(4)
  local answers, room, seq = {}, ARGV[6], tonumber(ARGV[7])

  local function code(user, user_room, ledger)
    if band(user_room.flags, MEMBER) == 0 or seq <= user_room.seq then return 0 end
    if has(apart_of(user, room, user_room), packed(seq), 4) then return 0 end
    if band(user_room.flags, TIMELINE) ~= 0 then return seq - user_room.seq > cap and 3 or 1 end
    local row = row_of(user, room, user_room)
    if not row then return 0 end
    if row.missing then return 3 end
    if not call('ZSCORE', ledger, ARGV[8]) then return 0 end
    return (row.floor > 0 or row.floor_at > 0) and 3 or 1
  end

  for user = 1, user_count do
    local found, epoch, preferences = 0, 0, ''
    if not open(user, room) then
      found = 3
    else
      local user_room = user_room_of(user, room)
      if user_room then
        found, epoch = code(user, user_room, ledger_key(user)), user_room.epoch
        if band(user_room.flags, PREFERS) ~= 0 then preferences = call('HGET', key_of(user, PREFERENCES), room) or '' end
      end
    end
    answers[#answers + 1] = found
    answers[#answers + 1] = epoch
    answers[#answers + 1] = preferences
  end
  return answers
end
