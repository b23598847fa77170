-- Stages a part of a loaded timeline.
-- KEYS  1 messages   2 seqs that mention everyone
-- ARGV  1 generation   2 expiry (ms)   3 packed: {seq, member, whether it mentions everyone (0 or 1)}, …
-- Returns how many messages are staged now
return function()
  for _, entry in ipairs(cmsgpack.unpack(ARGV[3])) do
    call('ZADD', KEYS[1], text(entry[1]), entry[2])
    if entry[3] == 1 then call('ZADD', KEYS[2], text(entry[1]), text(entry[1])) end
  end
  call('PEXPIRE', KEYS[1], ARGV[2])
  call('PEXPIRE', KEYS[2], ARGV[2])
  return call('ZCARD', KEYS[1])
end
