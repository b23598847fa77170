-- What every script begins with.

-- Numbers as text: what `..` makes of them is not exact.
local function text(number) return string.format('%.0f', number) end

-- Whether what was written under a generation is of the caller's. One that has missed a newer one is refused: it must
-- look at the servers first.
local function is_current(known, generation)
  known, generation = tonumber(known), tonumber(generation)
  if known > generation then error(redis.error_reply('OUTDATED generation ' .. generation)) end
  return known == generation
end
