-- Look for a subject. ARGV: where to look, the digest, the cursor, how many at a time. Where: `listed` events that have
-- failed, the hash of `open` ones, or `keys` of settled events and entities.
-- The answers: the next cursor, ids or keys, their values, and the groups of those that are letters.

-- include places records letters

local WHERE, DIGEST, CURSOR, COUNT = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local names, values, cursor = {}, {}, '0'

local function add(name, value)
  if value and string.find(value, DIGEST, 1, true) then names[#names + 1], values[#values + 1] = name, value end
end

if WHERE == 'listed' then
  for _, id in ipairs(call('ZREVRANGE', SUBJECT .. DIGEST, 0, -1)) do add(id, call('HGET', OPEN, id)) end
elseif WHERE == 'open' then
  local found = call('HSCAN', OPEN, CURSOR, 'COUNT', COUNT)
  cursor = found[1]
  for at = 1, #found[2], 2 do add(found[2][at], found[2][at + 1]) end
else
  local found = call('SCAN', CURSOR, 'MATCH', PREFIX .. '[en]:*', 'COUNT', COUNT)
  cursor = found[1]
  for _, key in ipairs(found[2]) do add(key, call('GET', key)) end
end
local groups = {}
if WHERE ~= 'keys' and #names > 0 then groups = call('HMGET', HEADS, unpack(names)) end
return {cursor, names, values, groups}
