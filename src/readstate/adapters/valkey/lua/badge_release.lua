-- A tap ends: the badge may be reloaded once no other tap holds it.
-- KEYS  1 badge:{user}   2 senders:{user}   3 hold:{user}
-- ARGV  1 generation   2 token
-- Returns whether the token still held the badge (0 or 1)
-- The badge is dropped again, because one that was loaded after the hold expired does not know of the tap.
return function()
  call('UNLINK', KEYS[1], KEYS[2])
  return call('HDEL', KEYS[3], ARGV[2])
end
