-- End claims. ARGV: retention, then a settlement each:
--   1 status | 2 flags | 3-6 day | 7-22 id | 23-30 token | for a chain: 31-46 entity, 47-54 top token |
--   for retry: 8 bytes, again in so many microseconds | for dead: 4 bytes, the letter's length; the letter |
--   for a chain: what its entity's data becomes
-- For each the answer is 1 if the claim was in force, or if this is the repeat of its end.

-- include places buckets records entities

local BEFORE = 1
local CHAIN, FREES = 32, 64 -- flags; SHARED as in records
local DAY, ID, ID_END, TOKEN, TOKEN_END = 3, 7, 22, 23, 30
local ENTITY_FROM, ENTITY_TO, TOP, TOP_TO = 31, 46, 47, 54
local NOW_TEXT = pack('>d', NOW)

local ids, chains, chain_keys, chain_of = {}, {}, {}, {}
for i = 1, #ARGV - BEFORE do
  local settlement = ARGV[BEFORE + i]
  ids[i] = sub(settlement, ID, ID_END)
  if flag(byte(settlement, 2), CHAIN) then
    local entity = sub(settlement, ENTITY_FROM, ENTITY_TO)
    local chain = chain_of[entity]
    if not chain then
      chain = {}
      chain_of[entity] = chain
      chains[#chains + 1], chain_keys[#chain_keys + 1] = chain, ENTITY .. entity
    end
  end
end
local records = call('HMGET', OPEN, unpack(ids))
if #chains > 0 then
  local entities = call('MGET', unpack(chain_keys))
  for c, chain in ipairs(chains) do
    chain.text = entities[c] or ''
    chain.top = sub(chain.text, 1, TOP_END)
  end
end

local written, erased, letters, letters_erased = {}, {}, {}, {}
local day_text, day
local function day_in(settlement)
  local text = sub(settlement, DAY, DAY + 3)
  if text ~= day_text then day_text, day = text, day_of(unpack_struct('>i4', text)) end
  return day
end

-- Whether a settle comes again whose reply was lost: then its own outcome is there.
local function is_repeat(settlement, id, record)
  local status = sub(settlement, 1, 1)
  if not record and IN_BUCKETS[status] and flag(byte(settlement, 2), SHARED) then
    local short = call('HGET', bucket_of(day_in(settlement), id, 1), sub(id, 1, SHORT))
    return short and sub(short, 1, 1) == status and sub(short, 5, 7) == sub(settlement, TOKEN_END - 2, TOKEN_END)
  end
  record = record or call('GET', EVENT .. id)
  return record and sub(record, 1, 1) == status
    and sub(record, TOKEN_AT, LEASE_AT - 1) == sub(settlement, TOKEN, TOKEN_END)
end

-- Where the part of a settlement is that only some ends have.
local function behind_chain(settlement)
  return flag(byte(settlement, 2), CHAIN) and TOP_TO + 1 or ENTITY_FROM
end

local function letter_of(settlement)
  local at = behind_chain(settlement)
  return sub(settlement, at + 4, at + 3 + unpack_struct('>I4', settlement, at))
end

local function data_of(settlement)
  local status, at = sub(settlement, 1, 1), behind_chain(settlement)
  if status == RETRY then
    at = at + 8
  elseif status == DEAD then
    at = at + 4 + unpack_struct('>I4', settlement, at)
  end
  return sub(settlement, at)
end

-- End a claim whose record goes into no bucket.
local function keep_record(settlement, status, id, record)
  local attempts, again, flags = unpack_struct('>H', record, ATTEMPTS_AT), 0, byte(record, 2)
  if status == RETRY then
    attempts, again = attempts + 1, NOW + unpack_struct('>d', settlement, behind_chain(settlement))
  elseif status == DEAD then
    attempts = attempts + 1
    if not flag(flags, LETTER) then flags = flags + LETTER end
    letters[#letters + 1], letters[#letters + 2] = id, letter_of(settlement)
  elseif SETTLED[status] and flag(flags, LETTER) then
    flags = flags - LETTER
    letters_erased[#letters_erased + 1] = id
  end
  local ended = status .. char(flags) .. pack('>H', attempts) .. '\0\0\0\0\0\0\0\0'
    .. sub(record, TOKEN_AT, LEASE_AT - 1) .. pack('>ddd', 0, NOW, again) .. sub(record, ENVELOPE_AT)
  if IN_BUCKETS[status] then
    call('SET', EVENT .. id, ended, 'EX', RETENTION_S)
    erased[#erased + 1] = id
  else
    written[#written + 1], written[#written + 2] = id, ended
  end
end

local kept = {}
for i, id in ipairs(ids) do
  local settlement, record = ARGV[BEFORE + i], records[i]
  local status, flags = sub(settlement, 1, 1), byte(settlement, 2)
  local chain = flag(flags, CHAIN) and chain_of[sub(settlement, ENTITY_FROM, ENTITY_TO)]
  if not record or sub(record, 1, 1) ~= CLAIMED
    or sub(record, TOKEN_AT, LEASE_AT - 1) ~= sub(settlement, TOKEN, TOKEN_END) then
    kept[i] = is_repeat(settlement, id, record) and 1 or 0
  elseif chain and chain.top ~= sub(settlement, TOP, TOP_TO) then
    kept[i] = 0
  else
    if IN_BUCKETS[status] and flag(flags, SHARED) then
      into_bucket(day_in(settlement), id, status .. sub(record, ENVELOPE_AT, ENVELOPE_AT + 2)
        .. sub(settlement, TOKEN_END - 2, TOKEN_END))
      erased[#erased + 1] = id
      if flag(byte(record, 2), LETTER) then letters_erased[#letters_erased + 1] = id end
    else
      keep_record(settlement, status, id, record)
    end
    if chain then
      chain.last = settlement
      chain.freed = chain.freed or flag(flags, FREES)
    end
    kept[i] = 1
  end
end

-- Each entity is written once, as its last settlement leaves it.
local function write_entity(key, chain)
  local text = chain.text
  if chain.freed or sub(text, HOLD_AT, HOLD_AT) == FREE then
    call('SET', key, chain.top .. NOW_TEXT .. FREE .. data_of(chain.last), 'EX', RETENTION_S)
  else
    -- Its holder may be late, but it is not forgotten meanwhile.
    call('SET', key, chain.top .. NOW_TEXT .. HELD .. sub(text, UNTIL_AT, HOLDER_END) .. data_of(chain.last))
  end
end

-- Whatever takes memory comes first: a server that is full refuses it, and then nothing has been erased.
if #written > 0 then call('HSET', OPEN, unpack(written)) end
if #letters > 0 then call('HSET', LETTERS, unpack(letters)) end
for c, chain in ipairs(chains) do
  if chain.last then write_entity(chain_keys[c], chain) end
end
write_days()
if #erased > 0 then call('HDEL', OPEN, unpack(erased)) end
if #letters_erased > 0 then call('HDEL', LETTERS, unpack(letters_erased)) end
return kept
