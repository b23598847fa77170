-- Brings sets of the write replica up to date with the hot store's.
-- KEYS  for each user known:{user}
-- ARGV  1 generation   2 ttl (ms)   3 for each user, packed: {whether these are all senders (0 or 1), name, senders}
-- Returns how many sets were written; a set with another name is left alone, unless these are all senders
return function()
  local written = 0
  for index, update in ipairs(cmsgpack.unpack(ARGV[3])) do
    local key, name = KEYS[index], update[2]
    if update[1] == 1 then
      call('UNLINK', key)
      call('HSET', key, '', name)
    end
    if call('TYPE', key).ok == 'hash' and call('HGET', key, '') == name then
      for _, sender in ipairs(update[3]) do call('HSET', key, sender, '') end
      call('PEXPIRE', key, ARGV[2])
      written = written + 1
    end
  end
  return written
end
