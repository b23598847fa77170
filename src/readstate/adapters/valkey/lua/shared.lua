-- Every script begins with this text.

-- A number as exact text: `..` is not exact.
local function text(number) return string.format('%.0f', number) end

-- Whether state of the generation `known` belongs to the caller's generation. A caller that has missed a newer
-- generation is refused: it must confirm the servers first.
local function is_current(known, generation)
  known, generation = tonumber(known), tonumber(generation)
  if known > generation then error(redis.error_reply('OUTDATED generation ' .. generation)) end
  return known == generation
end
