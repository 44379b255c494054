-- Forget a little. ARGV: before which time, and either a day, or ids in the hash of open ones, keys of events
-- that stand alone, or keys of entities. Returns how many events were forgotten, and whether there is more of the day.

-- include places buckets entities

local BEFORE = tonumber(ARGV[2])
local KIND, BUCKETS_AT_ONCE = ARGV[3], 1000

if KIND == 'day' then
  local day = tonumber(ARGV[4])
  local found = day_of(day)
  if found.newest >= BEFORE then return {0, 0} end
  local first = math.max(0, found.buckets - BUCKETS_AT_ONCE)
  for at = first, found.buckets - 1 do call('UNLINK', found.prefix .. at) end
  if first == 0 then
    call('HDEL', DAYS, ARGV[4])
    return {found.done + found.echo + found.stale, 0}
  end
  found.n = first * FILL -- a late event finds its place among what is left, and keeps that from being forgotten
  call('HSET', DAYS, day, pack('>ddddd', found.newest, found.n, found.done, found.echo, found.stale))
  return {0, 1}
end

local forgotten = 0
for i = 4, #ARGV do
  local at = ARGV[i]
  if KIND == 'open' then
    local record = call('HGET', OPEN, at)
    if record and sub(record, 1, 1) == 'x' and unpack_struct('>d', record, 29) < BEFORE then
      forgotten = forgotten + call('HDEL', OPEN, at)
    end
  elseif KIND == 'event' then
    local record = call('GET', at)
    if record and unpack_struct('>d', record, 29) < BEFORE then forgotten = forgotten + call('UNLINK', at) end
  else
    local entity = read_entity(call('GET', at))
    if entity.lease == 0 and entity.changed < BEFORE then call('UNLINK', at) end
  end
end
return {forgotten, 0}
