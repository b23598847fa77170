-- Returns the change numbers of users; -1: not loaded.
return function()
  begin(1)
  local answers = {}
  for index = 1, user_count do
    answers[index] = open(index) and number[index] or -1
  end
  return answers
end
