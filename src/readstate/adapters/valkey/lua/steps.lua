-- Applies hot updates (`step` in the code) to user rooms (`seat`); shared by `user_steps` and `user_install`.

-- Sets the flags of a user room; its ledger counts as empty then.
local function set_flags(user, room, seat, flags)
  drop_row(user, room, seat)
  local was = band(seat.flags, TIMELINE + MEMBER) == TIMELINE + MEMBER
  local is = band(flags, TIMELINE + MEMBER) == TIMELINE + MEMBER
  if was and not is then call('SREM', key_of(user, TIMELINES), room) end
  if is and not was then
    call('SADD', key_of(user, TIMELINES), room)
    expire_with(user, key_of(user, TIMELINES))
  end
  local kept = band(seat.flags, APART + PREFERS)
  seat.flags = bor(band(flags, MEMBER + TIMELINE + THREAD + ARCHIVED), kept)
end

-- Moves a channel in the inbox; a channel that is counted by timeline is not in it.
local function reorder(user, room, flags, latest)
  if band(flags, THREAD) ~= 0 then return end
  if band(flags, TIMELINE) ~= 0 then
    call('ZREM', key_of(user, INBOX), room)
  elseif call('ZADD', key_of(user, INBOX), latest, room) == 1 then
    expire_with(user, key_of(user, INBOX))
  end
end

-- A message was added, edited or removed. `ledger` is nil right after a load: the ledger must then be loaded too.
local function fan(user, step, own, mention, ledger)
  local room, change = step[2], step[4]
  if not loaded[user] then
    if ledger then call('RPUSHX', key_of(user, LOADING), cmsgpack.pack({step, own, mention})) end
    return
  end
  local seat = seat_of(user, room)
  if not seat or change <= seat.change or band(seat.flags, MEMBER) == 0 then return end
  local row = row_of(user, room, seat)
  local put, remove = step[7] ~= '', step[8] > 0
  local timeline = band(seat.flags, TIMELINE) ~= 0
  if change > seat.change and change > (row and row.filled or 0) then -- else the loaded ledger includes it
    if put and not own then
      if step[5] > seat.seq and not has(apart_of(user, room, seat), packed(step[5]), 4) and not (row and row.missing) then
        if not ledger then
          row = row or new_row()
          row.missing = true
        elseif step[10] and not timeline then
          if row and row.count > 0 and call('ZSCORE', ledger_key(ledger), step[7]) then
            local key = packed(step[5])
            row.named = mention and with(row.named, key, key .. pack('>I8', step[6]), NAMED) or
              without(row.named, key, NAMED)
          end
        elseif mention or not timeline or row then
          row = row or new_row()
          put_in(seat, row, ledger_key(ledger), step[5], step[6], step[7], mention)
        end
      end
    elseif remove and row and not row.missing then
      if ledger then
        take_out(seat, row, ledger_key(ledger), packed(step[8]), {step[9]})
      else
        row.missing = true
      end
    end
  end
  if not timeline then reorder(user, room, seat.flags, step[11]) end
  if step[12] then seat.flags = bor(seat.flags, ARCHIVED) else seat.flags = band(seat.flags, bnot(ARCHIVED)) end
  seat.change = change
  if row then
    row.latest = step[11]
    put_row(user, room, seat, row)
  end
  put_seat(user, seat)
end
