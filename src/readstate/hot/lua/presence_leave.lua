-- Devices are gone, and with them all that are overdue or of an instance that is gone. After presence_state.
-- KEYS  for each user presence:{user}, unproven:{user}
-- ARGV  6 for each user, packed: the entry that leaves; '' if only the others are meant
-- Returns for each user {'lost'} if nothing is known of this one, {'stays'}, or {'gone', since when, what is unproven, …}
-- if the last one went: the user is told to be gone once, to this caller. See `told`
local answers = {}

local function depart(presence, unproven, since)
  local answer = call('ZRANGE', unproven, 0, -1)
  call('UNLINK', presence, unproven)
  table.insert(answer, 1, text(since))
  table.insert(answer, 1, 'gone')
  return answer
end

local function leave(presence, unproven, leaving)
  local alive, dead, sure, found = sorted(presence, leaving)
  if not sure then return false end
  local since = found and now or 0
  if found then call('HDEL', presence, found.field) end
  for _, entry in ipairs(dead) do
    since = math.max(since, entry.til)
    call('HDEL', presence, entry.field)
  end
  if #alive == 0 and since > 0 then return depart(presence, unproven, since) end
  -- What was sent to a user who is still there somewhere else is not looked after.
  if since > 0 and not is_connected(alive) then call('UNLINK', unproven) end
  return {'stays'}
end

for index, leaving in ipairs(unpacked(ARGV[6])) do
  local presence, unproven = KEYS[2 * index - 1], KEYS[2 * index]
  if is_known(presence) then
    answers[index] = leave(presence, unproven, leaving)
  else
    answers[index] = {'lost'}
  end
end
return told(answers)
