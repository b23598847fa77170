-- Which senders the write replica knows. Its answer counts only where its set equals the hot store's. A set is a hash here: its members are the fields. The empty field, which is no user's id, has its name.
-- KEYS  for each user known:{user}
-- ARGV  1 generation   2 for each user, packed: {name, size, sum, senders}
-- Returns for each user 0 or 1 for each of these senders; {} if its set has another name, size or sum

local function is_the_same(key, name, size, sum)
  if call('TYPE', key).ok ~= 'hash' or call('HLEN', key) ~= size + 1 then return false end
  if call('HGET', key, '') ~= name then return false end
  local own = 0
  for _, member in ipairs(call('HKEYS', key)) do
    if member ~= '' then own = plus(own, member) end
  end
  return own == sum
end

return function()
  local answer = {}
  for index, asked in ipairs(cmsgpack.unpack(ARGV[2])) do
    local found = {}
    if is_the_same(KEYS[index], asked[1], asked[2], asked[3]) then
      for at, sender in ipairs(asked[4]) do found[at] = call('HEXISTS', KEYS[index], sender) end
    end
    answer[index] = found
  end
  return answer
end, {'no-writes'}
