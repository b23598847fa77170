-- Up to where each partition of the log is applied.
-- KEYS  1 places
-- ARGV  1 generation
-- Returns for each known partition: its number, "<position> <next offset>"
return function()
  local known = call('HGET', KEYS[1], 'generation')
  if not known or not is_current(known, ARGV[1]) then return {} end
  local all, found = call('HGETALL', KEYS[1]), {}
  for at = 1, #all, 2 do
    if all[at] ~= 'generation' then
      found[#found + 1] = all[at]
      found[#found + 1] = all[at + 1]
    end
  end
  return found
end, {'no-writes'}
