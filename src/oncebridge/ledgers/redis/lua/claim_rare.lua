-- Part of claim.lua: states, and events that have a record.

local ENTITY_FROM, ENTITY_TO, DIGEST = TAIL_REST, TAIL_REST + 15, 16
local PLACES = 4096
local NOW_TEXT, UNTIL_TEXT = pack('>d', NOW), pack('>d', NOW + LEASE_US)
local STATE_TIMES = pack('>ddd', 0, NOW, 0) -- lease, changed, again

-- The position of the content in a record or an ask, by its flags, or where it would be.
local function content_at(flags, rest_at)
  return flag(flags, STATE) and rest_at + DIGEST or rest_at
end

local function content_of(record)
  local flags = byte(record, 2)
  if not flag(flags, CONTENT) then return end
  local at = content_at(flags, REST_AT)
  return sub(record, at, at + DIGEST - 1)
end

local function about_of(record)
  local flags = byte(record, 2)
  return sub(record, content_at(flags, REST_AT) + (flag(flags, CONTENT) and DIGEST or 0))
end

-- Answer an ask that the record alone decides: there is nothing to claim.
local function known(ask, kind, record)
  local redrive = flag(kind.flags, REDRIVE)
  if not record then return redrive and 'n' end
  local content, at = flag(kind.flags, CONTENT) and content_of(record), content_at(kind.flags, TAIL_REST)
  if content and content ~= sub(ask, at, at + DIGEST - 1) then return 'k' .. about_of(record) end
  local status, flags = sub(record, 1, 1), byte(record, 2)
  if SETTLED[status] and not (redrive and status == DEAD) then
    local same = kind.envelope and flag(flags, ENVELOPE)
      and sub(ask, TAIL, TAIL_REST - 1) == sub(record, ENVELOPE_AT, REST_AT - 1)
    return 'd' .. status .. (same and '=' or '~') .. about_of(record)
  end
  return redrive and not flag(flags, LETTER) and 'n'
end

local function is_claimed(record)
  return record and sub(record, 1, 1) == CLAIMED
end

-- Whether this is the repeat of the call that has claimed it, whose reply was lost.
local function is_own(record)
  return is_claimed(record) and sub(record, NONCE_AT, TOKEN_AT - 1) == NONCE
end

local function granted_before(record, chain)
  return 'g' .. sub(record, TOKEN_AT, LEASE_AT - 1)
    .. pack('>HH', unpack_struct('>H', record, ATTEMPTS_AT) + 1, chain)
end

-- Claim an event that already has a record, and return its attempts.
local function write_over(id, ask, kind, record, times)
  local attempts, kept, rest = unpack_struct('>H', record, ATTEMPTS_AT), kind.kept, sub(ask, TAIL)
  local status, flags = sub(record, 1, 1), byte(record, 2)
  if status == DEAD then
    attempts = 0 -- redriven: a new start
  elseif status == CLAIMED and flag(flags, ALONE) then
    attempts = attempts + 1 -- it ran out alone
  end
  if flag(flags, LETTER) then kept = kept + LETTER end
  if flag(flags, CONTENT) and not flag(kept, CONTENT) then
    local at = content_at(kept, TAIL_REST)
    kept, rest = kept + CONTENT, sub(ask, TAIL, at - 1) .. content_of(record) .. sub(ask, at)
  end
  written[n + 1] = id
  written[n + 2] = CLAIMED .. char(kept) .. pack('>H', attempts) .. NONCE .. times .. rest
  n = n + 2
  return attempts
end

local function claim_fact(i, ask, kind, record)
  if is_own(record) then return granted_before(record, 0) end
  if is_claimed(record) then
    local lease = unpack_struct('>d', record, LEASE_AT)
    if lease > NOW then return 'b' .. pack('>d', lease - NOW) end
    if not flag(kind.flags, ALONE) then return 'w' end
  end
  local token = math.max(unpack_struct('>d', record, TOKEN_AT) + 1, NOW)
  local attempts = write_over(ids[i], ask, kind, record, pack('>dddd', token, NOW + LEASE_US, NOW, 0))
  return 'g' .. pack('>dHH', token, attempts + 1, 0)
end

-- Chains: the numbers of their asks.
local chains, chain_keys, chain_of = {}, {}, {}

local function decide(i, ask, kind, record)
  if record or flag(kind.flags, REDRIVE) then
    local answer = known(ask, kind, record)
    if answer then return answer end
  end
  if not flag(kind.flags, STATE) then return claim_fact(i, ask, kind, record) end
  local entity = sub(ask, ENTITY_FROM, ENTITY_TO)
  local chain = chain_of[entity]
  if not chain then
    chain = {}
    chain_of[entity] = chain
    chains[#chains + 1], chain_keys[#chain_keys + 1] = chain, ENTITY .. entity
  end
  chain[#chain + 1] = i
  return false -- until the chain is claimed
end

local function answer_from(chain, place, answer)
  for m = place, #chain do answers[chain[m] + 2] = answer end
end

-- Answer the repeat of a call whose reply was lost with the same answers.
local function grant_again(chain, text)
  local top = sub(text, 1, TOP_END)
  granted[#granted + 1] = top .. top .. sub(text, HOLD_AT, HOLD_AT) .. sub(text, HELD_DATA_AT)
  for _, i in ipairs(chain) do
    answers[i + 2] = is_own(records[i]) and granted_before(records[i], #granted) or 'z'
  end
end

-- How many states of a chain are before the first whose claim ran out: that one is claimed alone. None if this very
-- call had it, or one behind it: its repeat could not tell those from what it is granted now.
local function before_cut(chain)
  for m, i in ipairs(chain) do
    if is_claimed(records[i]) and not flag(byte(ARGV[BEFORE + i], 1), ALONE) then
      for behind = m, #chain do
        if is_own(records[chain[behind]]) then return 0 end
      end
      return m - 1
    end
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

-- Grant the first states of a chain, and return the entity's new value.
local function grant(chain, number, token, hold, data)
  local first, place = math.max(token + 1, NOW), (#granted + 1) * PLACES
  for m = 1, number do
    local i = chain[m]
    local ask, record = ARGV[BEFORE + i], records[i]
    local kind, times, attempts = kinds[byte(ask, 1)], token_text(first + m - 1) .. STATE_TIMES, 0
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
  return top .. NOW_TEXT .. hold .. UNTIL_TEXT .. NONCE .. data
end

local function claim_chain(chain, text)
  local token, hold, data = 0, HELD, ''
  if text then
    token = unpack_struct('>d', text)
    if sub(text, HOLD_AT, HOLD_AT) == FREE then
      data = sub(text, FREE_DATA_AT)
    else
      if sub(text, HOLDER_AT, HOLDER_END) == NONCE then return grant_again(chain, text) end
      local lease = unpack_struct('>d', text, UNTIL_AT)
      if lease > NOW then return answer_from(chain, 1, 'b' .. pack('>d', lease - NOW)) end
      hold, data = AFTER_RUN_OUT, sub(text, HELD_DATA_AT)
    end
  end
  local number = before_cut(chain)
  answer_from(chain, number + 1, 'z')
  if number > 0 then return grant(chain, number, token, hold, data) end
  answers[chain[1] + 2] = 'w'
end

-- Claim the chains that were found, and return the entities that are held now.
local function claim_chains()
  local held = {}
  if #chains > 0 then
    local entities = call('MGET', unpack(chain_keys))
    for c, chain in ipairs(chains) do held[chain_keys[c]] = claim_chain(chain, entities[c]) end
  end
  return held
end
