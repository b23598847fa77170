-- Runs one command on one key.
-- KEYS  1 the key
-- ARGV  1 generation   2 command   3.. its arguments
-- Returns the answer of the command
return function()
  return call(ARGV[2], KEYS[1], unpack(ARGV, 3))
end
