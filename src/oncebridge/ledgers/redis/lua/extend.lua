-- Let claims run longer. ARGV: lease in microseconds, then a claim each: 1-16 id | 17-24 token | its entity, for a state.

-- include places buckets records entities

local LEASE = tonumber(ARGV[2])
local FIRST = 2
local ids = {}
for i = FIRST + 1, #ARGV do ids[i - FIRST] = sub(ARGV[i], 1, 16) end
local records = call('HMGET', OPEN, unpack(ids))
local written, kept = {}, {}

for i, id in ipairs(ids) do
  local claim, record = ARGV[FIRST + i], records[i]
  kept[i] = 0
  if record and sub(record, 1, 1) == 'c' and sub(record, 13, 20) == sub(claim, 17, 24) then
    if #claim == 24 then
      written[#written + 1] = id
      written[#written + 1] = sub(record, 1, 20) .. pack('>d', NOW + LEASE) .. sub(record, 29)
      kept[i] = 1
    else
      local at = sub(claim, 25, 40)
      local entity = read_entity(call('GET', PREFIX .. 'n:' .. at))
      if entity.token == unpack_struct('>d', claim, 17) then
        entity.lease = NOW + LEASE
        write_entity(at, entity)
        kept[i] = 1
      end
    end
  end
end

if #written > 0 then call('HSET', OPEN, unpack(written)) end
return kept
