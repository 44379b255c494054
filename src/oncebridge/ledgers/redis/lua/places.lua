-- The keys of every script. KEYS[1] is the shard's prefix; it contains the shard's hash tag.
--
--   <prefix>open      hash, id -> record: events that are claimed, failed, given back, dead or discarded
--   <prefix>letters   hash, id -> the content of a dead letter
--   <prefix>days      hash, day -> newest settle, places taken, done, echo, stale: five doubles
--   <prefix>D:B       hash, first bytes of the id -> status, envelope, token: bucket B of event day D
--   <prefix>e:ID      a settled event without a shared time: its record, which expires by itself
--   <prefix>n:ENTITY  an entity
--   <prefix>a:D:B     hash, conversation -> its attendance on day D: see attendance.lua
--   <prefix>died      zset, id -> when: dead letters in order
--   <prefix>heads     hash, id -> the group of a dead letter: handler, reason, topic
--   <prefix>groups    zset, group -> how many dead letters are in it
--   <prefix>s:DIGEST  zset, id -> when: events of a conversation or user that have failed; it expires by itself
--   <prefix>mark      the ledger that this is a shard of: a server that was emptied has none
--
-- A day's buckets grow by linear hashing: the number N of buckets determines a record's bucket, and each time FILL more
-- records are in, one bucket is split into two. So every lookup reads one small hash, whatever the day's traffic, and
-- no worker has to know N: only scripts compute places.

local PREFIX = KEYS[1]
local OPEN, LETTERS, DAYS = PREFIX .. 'open', PREFIX .. 'letters', PREFIX .. 'days'
local EVENT, ENTITY = PREFIX .. 'e:', PREFIX .. 'n:'
local call, sub, byte, char = redis.call, string.sub, string.byte, string.char
local pack, unpack_struct, floor = struct.pack, struct.unpack, math.floor

local FILL = 48
local DAY_S = 86400
local SHORT = 9 -- bytes of an id that a bucket keeps

local time = call('TIME')
local NOW = time[1] * 1000000 + time[2]
local TODAY = floor(time[1] / DAY_S)

local days = {} -- those of this call, read once

local function day_of(day)
  local found = days[day]
  if not found then
    found = {newest = 0, n = 0, done = 0, echo = 0, stale = 0, buckets = 1, half = 1}
    local kept = call('HGET', DAYS, day)
    if kept then
      found.newest, found.n, found.done, found.echo, found.stale = unpack_struct('>ddddd', kept)
    end
    found.buckets = floor(found.n / FILL)
    if found.buckets < 1 then found.buckets = 1 end
    while found.half * 2 <= found.buckets do found.half = found.half * 2 end
    found.prefix = PREFIX .. day .. ':'
    found.day = day
    found.late = day < TODAY - 1 or day > TODAY + 399 -- or much too early: not around its own day
    days[day] = found
  end
  return found
end

-- The bucket of the id at some position in a text.
local function bucket_of(day, text, first)
  local a, b, c, d = byte(text, first, first + 3)
  local hash = a * 16777216 + b * 65536 + c * 256 + d
  local at = hash % (day.half * 2)
  if at >= day.buckets then at = at - day.half end
  return day.prefix .. at
end
