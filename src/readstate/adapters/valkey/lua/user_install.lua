-- Installs a loaded user. After the user's keys come six staged keys, one for each of the first six.
-- ARGV[6]: ticket, ARGV[7]: how many ledgers must be loaded.
-- Returns 1, or 0 if something happened since the ticket was issued: load again.
return function()
  begin(8)
  local user = 1
  open(user)
  local staged = {}
  for index = 1, 6 do staged[index] = KEYS[WIDTH + index] end
  local waiting = call('LRANGE', key_of(user, LOADING), 0, -1)
  if waiting[1] ~= ARGV[6] or waiting[2] ~= ARGV[1] then
    call('UNLINK', unpack(staged))
    return 0
  end
  call('DEL', key_of(user, LOADING))
  if loaded[user] then -- by another load, and later changes are in it
    call('UNLINK', unpack(staged))
    return 1
  end
  for index = 1, 6 do
    local key = KEYS[index]
    call('UNLINK', key)
    if call('EXISTS', staged[index]) == 1 then call('RENAME', staged[index], key) end
  end
  -- Larger than any number issued before, in an older generation or before the user expired.
  number[user] = math.max(number[user] + 1, generation * 4294967296 + 8 * math.max(0, seconds - 1700000000) + 1)
  since[user], missing[user], used[user], loaded[user] = number[user], tonumber(ARGV[7]), 0, true
  for index = 3, #waiting do
    local update = cmsgpack.unpack(waiting[index])
    fan_out(user, update[1], update[2], update[3], nil)
  end
  close()
  return 1
end
