-- Forget a little. ARGV: before which time, and either a day, or ids in the hash of open ones, keys of events without a
-- shared time, of entities, or of attendance. Returns how many events were forgotten, and whether more of the day is left.

-- include places records entities attendance

local BEFORE = tonumber(ARGV[1])
local KIND, FIRST, BUCKETS_AT_ONCE = ARGV[2], 3, 1000

if KIND == 'day' then
  local day = tonumber(ARGV[FIRST])
  local found = day_of(day)
  if found.newest >= BEFORE then return {0, 0} end
  local first = math.max(0, found.buckets - BUCKETS_AT_ONCE)
  for at = first, found.buckets - 1 do call('UNLINK', found.prefix .. at) end
  if first == 0 then
    call('HDEL', DAYS, ARGV[FIRST])
    return {found.done + found.echo + found.stale, 0}
  end
  found.n = first * FILL -- a late event finds its place among the rest, and keeps that from being forgotten
  call('HSET', DAYS, day, pack('>ddddd', found.newest, found.n, found.done, found.echo, found.stale))
  return {0, 1}
end

local function changed_before(text, at)
  return unpack_struct('>d', text, at) < BEFORE
end

local function forget_attendance(key)
  local day = tonumber(string.match(sub(key, #PREFIX + 1), '^a:(%d+):'))
  if not day or day * DAY_S * 1000000 >= BEFORE then return end
  if (day + 1) * DAY_S * 1000000 <= BEFORE then
    call('UNLINK', key)
    return
  end
  local all = call('HGETALL', key)
  for at = 1, #all, 2 do
    if day * DAY_S * 1000000 + unpack_struct('>I4', all[at + 1], 5) * 1000 < BEFORE then call('HDEL', key, all[at]) end
  end
end

local forgotten = 0
for i = FIRST, #ARGV do
  local at = ARGV[i]
  if KIND == 'open' then
    local record = call('HGET', OPEN, at)
    if record and sub(record, 1, 1) == DISCARD and changed_before(record, CHANGED_AT) then
      forgotten = forgotten + call('HDEL', OPEN, at)
    end
  elseif KIND == 'event' then
    local record = call('GET', at)
    if record and changed_before(record, CHANGED_AT) then forgotten = forgotten + call('UNLINK', at) end
  elseif KIND == 'attendance' then
    forget_attendance(at)
  else
    local entity = call('GET', at)
    if entity and sub(entity, HOLD_AT, HOLD_AT) == FREE and changed_before(entity, TOP_END + 1) then
      call('UNLINK', at)
    end
  end
end
return {forgotten, 0}
