-- Read letters, from the newest on. ARGV: the time to begin at or -1, the id there to begin behind or '', the oldest time,
-- how many. The answers: ids, times, records, groups.

-- include places records letters

local function is_before(id, other)
  for at = 1, #other do -- not by <, which depends on the server's locale
    local a, b = byte(id, at), byte(other, at)
    if a ~= b then return a < b end
  end
  return false
end

local FROM, BEHIND, OLDEST, LIMIT = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local ids, times = {}, {}
local newest = FROM == '-1' and '+inf' or FROM
if BEHIND ~= '' then
  for _, id in ipairs(call('ZREVRANGEBYSCORE', DIED, FROM, FROM)) do
    if #ids < LIMIT and is_before(id, BEHIND) then ids[#ids + 1], times[#times + 1] = id, FROM end
  end
  newest = '(' .. FROM
end
if #ids < LIMIT then
  local more = call('ZREVRANGEBYSCORE', DIED, newest, OLDEST, 'WITHSCORES', 'LIMIT', 0, LIMIT - #ids)
  for at = 1, #more, 2 do ids[#ids + 1], times[#times + 1] = more[at], more[at + 1] end
end
if #ids == 0 then return {{}, {}, {}, {}} end
return {ids, times, call('HMGET', OPEN, unpack(ids)), call('HMGET', HEADS, unpack(ids))}
