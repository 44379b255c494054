-- Part of settle.lua: entities, repeats, and ends that go into no bucket.

local ENTITY_FROM, ENTITY_TO, TOP, TOP_TO = 31, 46, 47, 54
local NOW_TEXT = pack('>d', NOW)

-- The chains of this call, by their entity: all are read at once, and each is written once, as its last end leaves it.
local chain_of, chain_keys, chains = {}, {}, {}
for i = 1, #ids do
  local settlement = ARGV[BEFORE + i]
  if flag(byte(settlement, 2), CHAIN) then
    local entity = sub(settlement, ENTITY_FROM, ENTITY_TO)
    if not chain_of[entity] then
      local chain = {freed = false}
      chain_of[entity] = chain
      chains[#chains + 1], chain_keys[#chain_keys + 1] = chain, ENTITY .. entity
    end
  end
end
if #chains > 0 then
  local entities = call('MGET', unpack(chain_keys))
  for c, chain in ipairs(chains) do
    chain.text = entities[c] or ''
    chain.top = sub(chain.text, 1, TOP_END)
  end
end

-- Return whether a state's chain is in force; if so, this end is the last one of it so far.
local function chain_in_force(settlement)
  local chain = chain_of[sub(settlement, ENTITY_FROM, ENTITY_TO)]
  if chain.top ~= sub(settlement, TOP, TOP_TO) then return false end
  chain.last = settlement
  chain.freed = chain.freed or flag(byte(settlement, 2), FREES)
  return true
end

-- The position of the part of a settlement that only some ends have.
local function extra_at(settlement)
  return flag(byte(settlement, 2), CHAIN) and TOP_TO + 1 or ENTITY_FROM
end

local function letter_end(settlement)
  local at = extra_at(settlement)
  return at + 3 + unpack_struct('>I4', settlement, at)
end

local function data_of(settlement)
  local status, last = sub(settlement, 1, 1), -1
  if flag(byte(settlement, 2), MARKED) then last = -1 - MARKED_BYTES end
  if status == RETRY then return sub(settlement, extra_at(settlement) + 8, last) end
  if status == DEAD then return sub(settlement, letter_end(settlement) + 1, last) end
  return sub(settlement, extra_at(settlement), last)
end

local function write_entities()
  for c, chain in ipairs(chains) do
    local key, text = chain_keys[c], chain.text
    if not chain.last then
      -- Nothing has ended.
    elseif chain.freed or sub(text, HOLD_AT, HOLD_AT) == FREE then
      call('SET', key, chain.top .. NOW_TEXT .. FREE .. data_of(chain.last), 'EX', RETENTION_S)
    else -- without a time to live: it must not expire under its holder
      call('SET', key, chain.top .. NOW_TEXT .. HELD .. sub(text, UNTIL_AT, HOLDER_END) .. data_of(chain.last))
    end
  end
end

-- Lists are for people: whatever goes wrong with them, such as a user who may not write them, an end is an end.
local function write_rest()
  write_entities()
  pcall(write_lists)
end

-- List an event that has failed by its conversation and user. Each try that follows finds it listed.
local function list_subjects(id, record)
  local people = people_of(record)
  for at = 4, 5 do
    if people[at] then
      local key = SUBJECT .. people[at]
      call('ZADD', key, NOW, id)
      call('ZREMRANGEBYRANK', key, 0, -1 - SUBJECT_MAX)
      call('EXPIRE', key, RETENTION_S)
    end
  end
end

-- Whether this is the repeat of a settle whose reply was lost: then its own outcome is there.
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

local function settle_otherwise(settlement, id, record, is_claimed)
  if not is_claimed then return is_repeat(settlement, id, record) and 1 or 0 end
  local status, flags = sub(settlement, 1, 1), byte(record, 2)
  local attempts, again = unpack_struct('>H', record, ATTEMPTS_AT), 0
  if status == DEAD or (attempts == 0 and not SETTLED[status]) then pcall(list_subjects, id, record) end
  if status == RETRY then
    attempts, again = attempts + 1, NOW + unpack_struct('>d', settlement, extra_at(settlement))
  elseif status == DEAD then
    attempts = attempts + 1
    if not flag(flags, LETTER) then flags = flags + LETTER end
    letters[#letters + 1] = id
    letters[#letters + 1] = sub(settlement, extra_at(settlement) + 4, letter_end(settlement))
    pcall(list_letter, id, record, letters[#letters], NOW + #letters / 2)
  elseif SETTLED[status] and flag(flags, LETTER) then
    flags = flags - LETTER
    letters_erased[#letters_erased + 1] = id
    pcall(unlist_letter, id)
  end
  local ended = status .. char(flags) .. pack('>H', attempts) .. NO_NONCE
    .. sub(record, TOKEN_AT, LEASE_AT - 1) .. pack('>ddd', 0, NOW, again) .. sub(record, ENVELOPE_AT)
  if IN_BUCKETS[status] then
    erased[#erased + 1] = id
    if flag(byte(settlement, 2), SHARED) then
      into_bucket(day_in(settlement), id, status .. sub(record, ENVELOPE_AT, REST_AT - 1)
        .. sub(settlement, TOKEN_END - 2, TOKEN_END))
    else
      call('SET', EVENT .. id, ended, 'EX', RETENTION_S)
    end
  else
    written[#written + 1], written[#written + 2] = id, ended
  end
  return 1
end
