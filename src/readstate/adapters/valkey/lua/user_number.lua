-- Raises a user's change number and returns it; -1: not loaded.
return function()
  begin(8)
  local user = 1
  if not open(user) then return -1 end
  number[user], dirty[user] = number[user] + 1, true
  close()
  return number[user]
end
