-- Keeps messages to users who are online until they are proven to have arrived.
-- KEYS  for each user presence:{user}, unproven:{user}
-- ARGV  6 for each user, packed: {accepted at, message, …}   7 how many are kept per user at most: the newest
-- Returns for each user whether it is online (0 or 1). See `result`
return function()
  begin()
  local answers, most = {}, tonumber(ARGV[7])

  local function keep(unproven, messages)
    for at = 1, #messages, 2 do call('ZADD', unproven, text(messages[at]), messages[at + 1]) end
    call('ZREMRANGEBYRANK', unproven, 0, -1 - most)
  end

  for index, messages in ipairs(unpacked(ARGV[6])) do
    local presence, unproven = KEYS[2 * index - 1], KEYS[2 * index]
    local online = 0
    if is_known(presence) then
      local alive, _, sure = sorted(presence)
      if is_connected(alive) then
        keep(unproven, messages)
        online = 1
      elseif not sure then
        online = false
      elseif #alive > 0 then
        online = 1
      end
    end
    answers[index] = online
  end
  return result(answers)
end
