-- End claims. ARGV: retention, then a settlement each:
--   1 status | 2 flags | 3-6 day | 7-22 id | 23-30 token | for a chain: 31-46 entity, 47-54 top token |
--   for retry: 8 bytes, microseconds until the next try | for dead: 4 bytes, the letter's length; the letter |
--   for a chain: the new data of its entity | if marked: 16 bytes, the conversation; 4 bytes, what came of it
-- For each the answer is 1 if the claim was in force, or if this is the repeat of its end.

-- include places buckets records

local BEFORE = 1
local MARKED, CHAIN, FREES = 1, 32, 64 -- flags; SHARED is as in records
local MARKED_BYTES = 20
local DAY, DAY_END, ID, ID_END, TOKEN, TOKEN_END = 3, 6, 7, 22, 23, 30

local ids = {}
for i = 1, #ARGV - BEFORE do ids[i] = sub(ARGV[BEFORE + i], ID, ID_END) end
local records = call('HMGET', OPEN, unpack(ids))
local written, erased, letters, letters_erased = {}, {}, {}, {}

local day_text, day
local function day_in(settlement)
  local text = sub(settlement, DAY, DAY_END)
  if text ~= day_text then day_text, day = text, day_of(unpack_struct('>i4', text)) end
  return day
end

-- Code that few calls need is defined only when it is needed, as in claim.lua.
local function rare()
-- include records entities letters settle_rare
return settle_otherwise, chain_in_force, write_rest
end

local function marking()
-- include attendance settle_marks
return add_mark, write_marks
end

-- Ends that go into buckets take the shortest way.
local kept, settle_otherwise, chain_in_force, write_rest = {}, nil, nil, nil
local add_mark, write_marks
for i, id in ipairs(ids) do
  local settlement, record = ARGV[BEFORE + i], records[i]
  local status, flags = sub(settlement, 1, 1), byte(settlement, 2)
  local is_claimed = record and sub(record, 1, 1) == CLAIMED
    and sub(record, TOKEN_AT, LEASE_AT - 1) == sub(settlement, TOKEN, TOKEN_END)
  local in_bucket = is_claimed and flag(flags, SHARED) and IN_BUCKETS[status] and not flag(byte(record, 2), LETTER)
  local is_state = flag(flags, CHAIN)
  if not settle_otherwise and (is_state or not in_bucket) then
    settle_otherwise, chain_in_force, write_rest = rare()
  end
  if is_claimed and is_state and not chain_in_force(settlement) then
    kept[i] = 0
  elseif in_bucket then
    into_bucket(day_in(settlement), id, status .. sub(record, ENVELOPE_AT, REST_AT - 1)
      .. sub(settlement, TOKEN_END - 2, TOKEN_END))
    erased[#erased + 1] = id
    kept[i] = 1
  else
    kept[i] = settle_otherwise(settlement, id, record, is_claimed)
  end
  if flag(flags, MARKED) and kept[i] == 1 then -- a repeat has left the same mark already
    if not add_mark then add_mark, write_marks = marking() end
    add_mark(settlement)
  end
end

-- Writes that take memory come first: a full server refuses them, and then nothing has been erased.
if #written > 0 then call('HSET', OPEN, unpack(written)) end
if #letters > 0 then call('HSET', LETTERS, unpack(letters)) end
if write_rest then write_rest() end
if write_marks then write_marks() end
write_days()
if #erased > 0 then call('HDEL', OPEN, unpack(erased)) end
if #letters_erased > 0 then call('HDEL', LETTERS, unpack(letters_erased)) end
return kept
