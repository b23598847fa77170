-- Writes connected devices.
-- KEYS  for each user presence:{user}, unproven:{user}
-- ARGV  6 for each user, packed: {{entry, until, channel that is open, channel that is read at once}, …}
-- Returns how many were written
return function()
  begin()
  local count = 0
  for index, items in ipairs(unpacked(ARGV[6])) do
    local presence, unproven = KEYS[2 * index - 1], KEYS[2 * index]
    if not is_known(presence) then
      call('UNLINK', presence, unproven)
      call('HSET', presence, '', generation)
    end
    for _, item in ipairs(items) do
      local entry, til, reported, focus = unpack(item)
      local known = call('HGET', presence, entry)
      known = known and unpacked(known)
      if known and known[2] == reported then focus = known[3] end -- the channel was not opened again, so a blur stays
      call('HSET', presence, entry, pack({til, reported, focus}))
      count = count + 1
    end
  end
  return count
end
