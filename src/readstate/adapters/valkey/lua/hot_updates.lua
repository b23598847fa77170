-- Applies hot updates to user rooms; shared by `user_apply` and `user_install`.

-- Sets the flags of a user room; its ledger counts as empty then.
local function set_flags(user, room, user_room, flags)
  drop_row(user, room, user_room)
  local was = band(user_room.flags, TIMELINE + MEMBER) == TIMELINE + MEMBER
  local is = band(flags, TIMELINE + MEMBER) == TIMELINE + MEMBER
  if was and not is then call('SREM', key_of(user, TIMELINES), room) end
  if is and not was then
    call('SADD', key_of(user, TIMELINES), room)
    expire_with(user, key_of(user, TIMELINES))
  end
  local kept = band(user_room.flags, APART + PREFERS)
  user_room.flags = bor(band(flags, MEMBER + TIMELINE + THREAD + ARCHIVED), kept)
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
local function fan_out(user, update, own, mention, ledger)
  local room, change = update[2], update[4]
  if not loaded[user] then
    if ledger then call('RPUSHX', key_of(user, LOADING), cmsgpack.pack({update, own, mention})) end
    return
  end
  local user_room = user_room_of(user, room)
  if not user_room or change <= user_room.change or band(user_room.flags, MEMBER) == 0 then return end
  local row = row_of(user, room, user_room)
  local put, remove = update[7] ~= '', update[8] > 0
  local timeline = band(user_room.flags, TIMELINE) ~= 0
  if change > user_room.change and change > (row and row.filled or 0) then -- else the loaded ledger includes it
    if put and not own then
      local is_read = update[5] <= user_room.seq or has(apart_of(user, room, user_room), packed(update[5]), 4)
      if not is_read and not (row and row.missing) then
        if not ledger then
          row = row or new_row()
          row.missing = true
        elseif update[10] and not timeline then
          if row and row.count > 0 and call('ZSCORE', ledger_key(ledger), update[7]) then
            local key = packed(update[5])
            row.named = mention and with(row.named, key, key .. pack('>I8', update[6]), NAMED) or
              without(row.named, key, NAMED)
          end
        elseif mention or not timeline or row then
          row = row or new_row()
          put_in(user_room, row, ledger_key(ledger), update[5], update[6], update[7], mention)
        end
      end
    elseif remove and row and not row.missing then
      if ledger then
        take_out(user_room, row, ledger_key(ledger), packed(update[8]), {update[9]})
      else
        row.missing = true
      end
    end
  end
  if not timeline then reorder(user, room, user_room.flags, update[11]) end
  local flags = band(user_room.flags, bnot(ARCHIVED))
  user_room.flags = update[12] and bor(flags, ARCHIVED) or flags
  user_room.change = change
  if row then
    row.latest = update[11]
    put_row(user, room, user_room, row)
  end
  put_user_room(user, user_room)
end
