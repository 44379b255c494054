-- Writing settled events. ARGV[1]: the retention in seconds.

local RETENTION_S = tonumber(ARGV[1])

-- A bucket expires long after its day. Events that come around their own day leave that unchanged; for any other
-- the bucket's time to live is counted from now.
local function bucket_life_s(day)
  local from = TODAY
  if day > TODAY and day < TODAY + 400 then from = day end
  return (from - TODAY + 3) * DAY_S + RETENTION_S
end

local function make_bucket(key, day)
  call('HSET', key, '', '') -- so that it exists, and can expire, before its first record
  call('EXPIRE', key, bucket_life_s(day))
end

-- Move the records of the new bucket out of the one that is split.
local function split(found, day)
  if found.buckets == found.half * 2 then found.half = found.half * 2 end
  local from, to = found.prefix .. (found.buckets - found.half), found.prefix .. found.buckets
  make_bucket(to, day)
  local all, new, modulus = call('HGETALL', from), found.buckets, found.half * 2
  local moved, gone, n = {}, {}, 0
  for at = 1, #all, 2 do
    local short = all[at]
    if short ~= '' then
      local a, b, c, d = byte(short, 1, 4)
      if (a * 16777216 + b * 65536 + c * 256 + d) % modulus == new then
        n = n + 1
        moved[2 * n - 1], moved[2 * n], gone[n] = short, all[at + 1], short
      end
    end
  end
  if n > 0 then
    call('HSET', to, unpack(moved))
    call('HDEL', from, unpack(gone))
  end
  found.buckets = found.buckets + 1
end

-- The statuses that are kept in buckets, and where their days count them.
local IN_BUCKETS = {D = 'done', e = 'echo', s = 'stale'}

-- Keep an event: short is its value in a bucket, the status first.
local function into_bucket(found, id, short)
  local day = found.day
  if found.n == 0 then make_bucket(found.prefix .. '0', day) end
  local key = bucket_of(found, id, 1)
  if call('HSET', key, sub(id, 1, SHORT), short) == 1 then
    found.n = found.n + 1
    local column = IN_BUCKETS[sub(short, 1, 1)]
    found[column] = found[column] + 1
    if found.n >= (found.buckets + 1) * FILL then split(found, day) end
  end
  if found.late then call('EXPIRE', key, bucket_life_s(day)) end
  found.newest = NOW
end

local function write_days()
  for day, found in pairs(days) do
    if found.newest == NOW then
      call('HSET', DAYS, day, pack('>ddddd', found.newest, found.n, found.done, found.echo, found.stale))
    end
  end
end
