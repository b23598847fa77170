-- Shared. The devices of a user. `presence` is a hash:
--   ''                                        -> the generation in which everything in it was written
--   [instance, device, connection] as JSON    -> {until, channel that is open, channel that is read at once}, packed
-- A device that was only reported has no instance and no connection; both are '' then. '' also stands for no channel.
-- `unproven` is a sorted set: messages that were sent and may not have arrived, score = time of acceptance.
-- ARGV begins with  1 generation   2 now (ms)   3 instances that live   4 instances that are gone, both packed
--   5 the only generation in which the script may decide; 0: any

local pack, unpacked
local generation, now, live, gone, unknown

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  return set
end

-- Every call begins with this.
local function begin()
  pack, unpacked = cmsgpack.pack, cmsgpack.unpack
  generation, now = ARGV[1], tonumber(ARGV[2])
  live, gone, unknown = set_of(unpacked(ARGV[3])), set_of(unpacked(ARGV[4])), {}
end

-- Whether anything is known of a user in this generation.
local function is_known(presence)
  if ARGV[5] ~= '0' and ARGV[5] ~= generation then return false end -- the generation is too young
  local known = call('HGET', presence, '')
  return known and is_current(known, generation)
end

-- Sorts the entries of a user into live and dead ones. `sure` is false if an entry is of an instance that the caller
-- does not know: the caller must look it up first. The entry `leaving` is in neither list.
local function sorted(presence, leaving)
  local flat, alive, dead, sure, found = call('HGETALL', presence), {}, {}, true, nil
  for at = 1, #flat, 2 do
    if flat[at] ~= '' then
      local name, value = cjson.decode(flat[at]), unpacked(flat[at + 1])
      local entry = {
        field = flat[at], device = name[2], connection = name[3], til = value[1], reported = value[2], focus = value[3],
      }
      if flat[at] == leaving then
        found = entry
      elseif entry.til <= now then
        dead[#dead + 1] = entry
      elseif gone[name[1]] then
        entry.til = now
        dead[#dead + 1] = entry
      elseif name[1] == '' or live[name[1]] then
        alive[#alive + 1] = entry
      else
        unknown[name[1]], sure = true, false
      end
    end
  end
  return alive, dead, sure, found
end

-- Whether any entry has a connection. Devices that are only reported give no signs of life.
local function is_connected(entries)
  for _, entry in ipairs(entries) do
    if entry.connection ~= '' then return true end
  end
  return false
end

-- The result of a script: an answer for each user, false where it is not sure; and the instances to look up.
local function result(answers)
  local names = {}
  for name in pairs(unknown) do names[#names + 1] = name end
  return {answers, names}
end
