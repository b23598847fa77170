-- Who is online, and with what.
-- KEYS  for each user presence:{user}, unproven:{user}
-- ARGV  6 what is wanted, for each user, packed: 'online', 'devices' or 'focus'
-- Returns for each user a list: {'connected'}, {'reported'} or {} for 'online'; the devices; or the channels that are
-- read at once. See `result`
return function()
  begin()
  local answers = {}
  for index, what in ipairs(unpacked(ARGV[6])) do
    local presence, found = KEYS[2 * index - 1], {}
    if is_known(presence) then
      local alive, _, sure = sorted(presence)
      if what == 'online' then
        if is_connected(alive) then
          found = {'connected'}
        elseif sure then
          found = alive[1] and {'reported'} or {}
        else
          found = false
        end
      else
        for _, entry in ipairs(alive) do
          if what == 'devices' then
            found[#found + 1] = entry.device
          elseif entry.focus ~= '' then
            found[#found + 1] = entry.focus
          end
        end
        found = sure and found
      end
    end
    answers[index] = found
  end
  return result(answers)
end, {'no-writes'}
