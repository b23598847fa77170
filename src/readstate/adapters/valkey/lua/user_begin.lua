-- Announces a load of one user. ARGV[6]: a new ticket, ARGV[7]: how long it is valid (ms).
-- Returns the ticket of the load in flight, which may be an earlier one.
return function()
  begin(8)
  local loading = KEYS[7]
  local known = call('LRANGE', loading, 0, 1)
  if known[2] == ARGV[1] then return known[1] end
  call('DEL', loading)
  call('RPUSH', loading, ARGV[6], ARGV[1])
  call('PEXPIRE', loading, ARGV[7])
  return ARGV[6]
end
