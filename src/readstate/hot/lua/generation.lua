-- Whether what was written under a generation is of the caller's. One that has missed a newer one is refused: it must
-- look at the servers first. Comes before every other part of a script.
local function is_current(known, generation)
  known, generation = tonumber(known), tonumber(generation)
  if known > generation then error(redis.error_reply('OUTDATED generation ' .. generation)) end
  return known == generation
end
