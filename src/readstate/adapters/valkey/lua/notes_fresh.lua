-- The newest generation that is fresh.
-- KEYS  1 notes
return function()
  return tonumber(call('HGET', KEYS[1], 'fresh') or '0')
end, {'no-writes'}
