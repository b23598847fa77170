-- Drops a badge, and the ticket of a load in flight.
-- KEYS  1 badge:{user}   2 senders:{user}
-- ARGV  1 generation
-- Returns how many of the keys existed
return function()
  return call('UNLINK', KEYS[1], KEYS[2])
end
