-- The change numbers of users; -1: not loaded.
local answers = {}
for index = 1, user_count do
  local user = open(index)
  answers[index] = user.loaded and user.number or -1
end
return answers
