-- Shared by all functions. KEYS and ARGV are those of the call that runs; `call` is `redis.call`.

-- A number as exact text: `..` is not exact.
local function text(number) return string.format('%.0f', number) end

-- Whether state of the generation `known` belongs to the caller's generation. A caller that has missed a newer
-- generation is refused: it must confirm the servers first.
local function is_current(known, generation)
  known, generation = tonumber(known), tonumber(generation)
  if known > generation then error(redis.error_reply('OUTDATED generation ' .. generation)) end
  return known == generation
end

-- For functions whose late copy would undo something newer: refuses a call that its sender has given up. The last
-- argument is the deadline (ms, by the server's clock); 0: none.
local function check_deadline()
  local deadline = tonumber(ARGV[#ARGV])
  if deadline == 0 then return end
  local time = call('TIME')
  if tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000 > deadline then
    error(redis.error_reply('OUTDATED call: it comes too late'))
  end
end
