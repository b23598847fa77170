-- Devices are gone, and with them all that are overdue or of an instance that is gone. After presence_state.
-- KEYS  for each user presence:{user}, unproven:{user}, left:{user}
-- ARGV  6 for each user, packed: {the entry that leaves; '' if only the others are meant, what is proven, …}
-- Returns for each user {'lost'} if nothing is known of this one, {'stays'}, or {'gone', since when, what is unproven, …}
-- if the last one went: the user is told to be gone once, to this caller. What is unproven is kept in `left` until the
-- database has it, and told again (since when = 0) to whoever looks after the user. See `told`
local answers = {}

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
  -- What was sent to a user who is still there somewhere else is not looked after.
  if since > 0 and not is_connected(alive) then call('UNLINK', unproven) end
  return {'stays'}
end

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
return told(answers)
