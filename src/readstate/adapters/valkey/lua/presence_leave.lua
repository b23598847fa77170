-- Removes the entry of a device, and all entries that are overdue or of an instance that is gone.
-- KEYS  for each user presence:{user}, unproven:{user}, left:{user}
-- ARGV  6 for each user, packed: {the entry that leaves, '' for only the others; proven messages, …}
-- Returns for each user {'lost'} if nothing is known of the user in this generation, {'stays'}, or {'gone', since when,
-- unproven messages, …} if the last entry was removed; only one caller gets this. Unproven messages are kept in `left`
-- until the durable store has them, and are returned again (since when = 0) to a caller that passes ''. See `result`

local function gone_since(left, since)
  local answer = call('ZRANGE', left, 0, -1)
  table.insert(answer, 1, text(since))
  table.insert(answer, 1, 'gone')
  return answer
end

local function depart(presence, unproven, left, since)
  call('ZUNIONSTORE', left, 2, left, unproven, 'AGGREGATE', 'MAX')
  call('UNLINK', presence, unproven)
  return gone_since(left, since)
end

local function leave(presence, unproven, left, leaving)
  local alive, dead, sure, found = sorted(presence, leaving)
  if not sure then return false end
  local since = found and now or 0
  if found then call('HDEL', presence, found.field) end
  for _, entry in ipairs(dead) do
    since = math.max(since, entry.til)
    call('HDEL', presence, entry.field)
  end
  if #alive == 0 and since > 0 then return depart(presence, unproven, left, since) end
  -- Delivery is not tracked while a user is online only through reported devices.
  if since > 0 and not is_connected(alive) then call('UNLINK', unproven) end
  return {'stays'}
end

return function()
  begin()
  local answers = {}

  for index, item in ipairs(unpacked(ARGV[6])) do
    local presence, unproven, left = KEYS[3 * index - 2], KEYS[3 * index - 1], KEYS[3 * index]
    local answer = {'lost'}
    if is_known(presence) then
      for at = 2, #item do call('ZREM', unproven, item[at]) end
      answer = leave(presence, unproven, left, item[1])
    end
    if answer and answer[1] ~= 'gone' and item[1] == '' and call('EXISTS', left) == 1 then answer = gone_since(left, 0) end
    answers[index] = answer
  end
  return result(answers)
end
