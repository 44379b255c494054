-- Claim events. ARGV: nonce, lease in microseconds, the ledger's mark, then an ask each:
--   1 flags | 2-5 day | 6-21 id | 22-24 envelope | a state's entity | content, if flagged | about
-- Asks of one entity are a chain, in their order.
-- The answers: the time; the chains that were granted, each as its first and its top token, how it is held, and data; then
-- for each ask
--   0: a fact was granted, and the time is its token | n * PLACES + m: the state m of chain n, from 0, was granted |
--   g token, attempt, chain | w: wants to be asked for alone | b microseconds: busy | z: waits for one before it |
--   k about: conflict | d status, same envelope, about: duplicate | n: no letter to redrive
-- Or a text, where the shard is not that ledger's: it was emptied, or has begun anew since.

-- include places records entities

local NONCE, LEASE_US, MARK, BEFORE = ARGV[1], tonumber(ARGV[2]), ARGV[3], 3
local ID, ID_END, TAIL, ENTITY_FROM, ENTITY_TO = 6, 21, 22, 25, 40
local PLACES = 4096

if call('GET', PREFIX .. 'mark') ~= MARK then return 'another' end

local NOW_TEXT = pack('>d', NOW)
local UNTIL_TEXT = pack('>d', NOW + LEASE_US)
local FACT_TIMES = NOW_TEXT .. UNTIL_TEXT .. pack('>dd', NOW, 0) -- its token first
local STATE_TIMES = pack('>ddd', 0, NOW, 0)

local ids = {}
for i = 1, #ARGV - BEFORE do ids[i] = sub(ARGV[BEFORE + i], ID, ID_END) end
local records = call('HMGET', OPEN, unpack(ids))
local answers, granted, written, n = {NOW, false}, {}, {}, 0

-- What an ask's flags say; asks have few different ones.
local kinds = {}
local function new_kind(flags)
  local kind = {
    alone = flag(flags, ALONE), content = flag(flags, CONTENT), envelope = flag(flags, ENVELOPE),
    shared = flag(flags, SHARED), state = flag(flags, STATE), redrive = flag(flags, REDRIVE),
    kept = flags % SHARED + (flag(flags, STATE) and STATE or 0), -- by the record
    content_at = flag(flags, STATE) and ENTITY_TO + 1 or ENTITY_FROM,
  }
  kind.head = CLAIMED .. char(kind.kept) .. '\0\0' .. NONCE
  kinds[flags] = kind
  return kind
end

-- Answer an ask for which the record alone speaks: there is nothing to claim.
local function known(ask, kind, record)
  if not record then return kind.redrive and 'n' end
  local content = kind.content and content_of(record)
  if content and content ~= sub(ask, kind.content_at, kind.content_at + DIGEST - 1) then
    return 'k' .. about_of(record)
  end
  local status, flags = sub(record, 1, 1), byte(record, 2)
  if SETTLED[status] and not (kind.redrive and status == DEAD) then
    local same = kind.envelope and flag(flags, ENVELOPE)
      and sub(ask, TAIL, TAIL + 2) == sub(record, ENVELOPE_AT, ENVELOPE_AT + 2)
    return 'd' .. status .. (same and '=' or '~') .. about_of(record)
  end
  return kind.redrive and not flag(flags, LETTER) and 'n'
end

-- Claim an event that has a record already, and return its attempts.
local function write_over(id, ask, kind, record, times)
  local attempts, kept, rest = unpack_struct('>H', record, ATTEMPTS_AT), kind.kept, sub(ask, TAIL)
  local status, flags = sub(record, 1, 1), byte(record, 2)
  if status == DEAD then
    attempts = 0 -- redriven: a new start
  elseif status == CLAIMED and flag(flags, ALONE) then
    attempts = attempts + 1 -- it ran out alone
  end
  if flag(flags, LETTER) then kept = kept + LETTER end
  if flag(flags, CONTENT) and not kind.content then
    kept = kept + CONTENT
    rest = sub(ask, TAIL, kind.content_at - 1) .. content_of(record) .. sub(ask, kind.content_at)
  end
  written[n + 1] = id
  written[n + 2] = CLAIMED .. char(kept) .. pack('>H', attempts) .. NONCE .. times .. rest
  n = n + 2
  return attempts
end

local function claim_known_fact(id, ask, kind, record)
  local token = unpack_struct('>d', record, TOKEN_AT)
  if sub(record, 1, 1) == CLAIMED then
    if sub(record, NONCE_AT, TOKEN_AT - 1) == NONCE then -- the repeat of a call whose reply was lost
      return 'g' .. pack('>dHH', token, unpack_struct('>H', record, ATTEMPTS_AT) + 1, 0)
    end
    local lease = unpack_struct('>d', record, LEASE_AT)
    if lease > NOW then return 'b' .. pack('>d', lease - NOW) end
    if not kind.alone then return 'w' end
  end
  token = math.max(token + 1, NOW)
  local attempts = write_over(id, ask, kind, record, pack('>dddd', token, NOW + LEASE_US, NOW, 0))
  return 'g' .. pack('>dHH', token, attempts + 1, 0)
end

-- Facts that nobody has seen take the shortest way; states are gathered by their entity.
local chains, chain_keys, chain_of = {}, {}, {}
local day_text, day
for i, id in ipairs(ids) do
  local ask, record, answer = ARGV[BEFORE + i], records[i], false
  local flags = byte(ask, 1)
  local kind = kinds[flags] or new_kind(flags)
  if not record then
    if kind.shared then
      local text = sub(ask, 2, 5)
      if text ~= day_text then day_text, day = text, day_of(unpack_struct('>i4', text)) end
      local short = call('HGET', bucket_of(day, ask, ID), sub(ask, ID, ID + SHORT - 1))
      if short then
        local same = kind.envelope and sub(ask, TAIL, TAIL + 2) == sub(short, 2, 4)
        answer = 'd' .. sub(short, 1, 1) .. (same and '=' or '~')
      end
    else
      record = call('GET', EVENT .. id)
    end
  end
  if not answer and (record or kind.redrive) then answer = known(ask, kind, record) end
  if answer then
    answers[i + 2] = answer
  elseif kind.state then
    local entity = sub(ask, ENTITY_FROM, ENTITY_TO)
    local chain = chain_of[entity]
    if not chain then
      chain = {}
      chain_of[entity] = chain
      chains[#chains + 1], chain_keys[#chain_keys + 1] = chain, ENTITY .. entity
    end
    chain[#chain + 1] = i
    if record then records[i] = record end
  elseif record then
    answers[i + 2] = claim_known_fact(id, ask, kind, record)
  else
    written[n + 1], written[n + 2] = id, kind.head .. FACT_TIMES .. sub(ask, TAIL)
    n = n + 2
    answers[i + 2] = 0
  end
end

local held = {}

local function answer_all(chain, from, answer)
  for m = from, #chain do answers[chain[m] + 2] = answer end
end

-- Answer the repeat of a call whose reply was lost as that reply did.
local function grant_again(chain, text)
  granted[#granted + 1] = sub(text, 1, TOP_END) .. sub(text, 1, TOP_END) .. sub(text, HOLD_AT, HOLD_AT)
    .. sub(text, HELD_DATA_AT)
  for _, i in ipairs(chain) do
    local record = records[i]
    if record and sub(record, 1, 1) == CLAIMED and sub(record, NONCE_AT, TOKEN_AT - 1) == NONCE then
      answers[i + 2] = 'g' .. sub(record, TOKEN_AT, LEASE_AT - 1)
        .. pack('>HH', unpack_struct('>H', record, ATTEMPTS_AT) + 1, #granted)
    else
      answers[i + 2] = 'z'
    end
  end
end

-- How many states of a chain are before the first whose claim ran out: that one is claimed alone.
local function before_cut(chain)
  for m, i in ipairs(chain) do
    local record = records[i]
    if record and sub(record, 1, 1) == CLAIMED and not kinds[byte(ARGV[BEFORE + i], 1)].alone then return m - 1 end
  end
  return #chain
end

local token_texts = {} -- most chains begin at the time
local function token_text(token)
  local text = token_texts[token]
  if not text then
    text = pack('>d', token)
    token_texts[token] = text
  end
  return text
end

local function grant(chain, key, number, token, hold, data)
  local first, place = math.max(token + 1, NOW), (#granted + 1) * PLACES
  for m = 1, number do
    local i = chain[m]
    local ask, record = ARGV[BEFORE + i], records[i]
    local kind, times = kinds[byte(ask, 1)], token_text(first + m - 1) .. STATE_TIMES
    local attempts = 0
    if record then
      attempts = write_over(ids[i], ask, kind, record, times)
    else
      written[n + 1], written[n + 2] = ids[i], kind.head .. times .. sub(ask, TAIL)
      n = n + 2
    end
    if attempts == 0 then
      answers[i + 2] = place + m - 1
    else
      answers[i + 2] = 'g' .. pack('>dHH', first + m - 1, attempts + 1, #granted + 1)
    end
  end
  local top = token_text(first + number - 1)
  granted[#granted + 1] = token_text(first) .. top .. hold .. data
  held[key] = top .. NOW_TEXT .. hold .. UNTIL_TEXT .. NONCE .. data
end

local function claim_chain(chain, key, text)
  local token, hold, data = 0, HELD, ''
  if text then
    token = unpack_struct('>d', text)
    if sub(text, HOLD_AT, HOLD_AT) == FREE then
      data = sub(text, FREE_DATA_AT)
    else
      if sub(text, HOLDER_AT, HOLDER_END) == NONCE then return grant_again(chain, text) end
      local lease = unpack_struct('>d', text, UNTIL_AT)
      if lease > NOW then return answer_all(chain, 1, 'b' .. pack('>d', lease - NOW)) end
      hold, data = AFTER_RUN_OUT, sub(text, HELD_DATA_AT)
    end
  end
  local number = before_cut(chain)
  answer_all(chain, number + 1, 'z')
  if number == 0 then
    answers[chain[1] + 2] = 'w'
  else
    grant(chain, key, number, token, hold, data)
  end
end

if #chains > 0 then
  local entities = call('MGET', unpack(chain_keys))
  for c, chain in ipairs(chains) do claim_chain(chain, chain_keys[c], entities[c]) end
end

if n > 0 then call('HSET', OPEN, unpack(written)) end
for key, text in pairs(held) do call('SET', key, text) end -- without a life: they must not expire under their holder
answers[2] = granted
return answers
