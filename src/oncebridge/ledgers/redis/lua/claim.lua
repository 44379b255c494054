-- Claim events. ARGV: nonce, lease in microseconds, the ledger's mark, then an ask each:
--   1 flags | 2-5 day | 6-21 id | 22-24 envelope | a state's entity | content, if flagged | about
-- Asks of one entity are a chain, in their order.
-- The answers: the time; the granted chains, each as its first and its top token, how it is held, and data; then for
-- each ask
--   0: a fact was granted, and the time is its token | n * PLACES + m: the state m of chain n, from 0, was granted |
--   g token, attempt, chain | w: must be claimed alone | b microseconds: busy | z: waits for one before it |
--   k about: conflict | d status, same envelope, about: duplicate | r status, envelope: a republish that is in
--   a bucket | n: no letter to redrive
-- Or a text, if the shard is not that ledger's: it was emptied, or started over since.

-- include places records

local NONCE, LEASE_US, MARK, BEFORE = ARGV[1], tonumber(ARGV[2]), ARGV[3], 3
local DAY, DAY_END, ID, ID_END, TAIL, TAIL_REST = 2, 5, 6, 21, 22, 25

if call('GET', PREFIX .. 'mark') ~= MARK then return 'another' end

local ids = {}
for i = 1, #ARGV - BEFORE do ids[i] = sub(ARGV[BEFORE + i], ID, ID_END) end
local records = call('HMGET', OPEN, unpack(ids))
local kinds, granted, written, n = {}, {}, {}, 0
local answers = {NOW, granted}

-- Code that few calls need is defined only when it is needed: defining it alone would take longer than a claim. The
-- constants are included once more, since each upvalue of a function costs time, too.
local function rare()
-- include records entities claim_rare
return decide, claim_chains
end

local FACT_TIMES = pack('>dddd', NOW, NOW + LEASE_US, NOW, 0) -- token, lease, changed, again

-- New facts, and duplicates, take the shortest way.
local decide, claim_chains, day_text, day
for i, id in ipairs(ids) do
  local ask, record, answer = ARGV[BEFORE + i], records[i], nil
  local flags = byte(ask, 1)
  local kind = kinds[flags] -- the meaning of an ask's flags; few are different
  if not kind then
    kind = {flags = flags, envelope = flag(flags, ENVELOPE), shared = flag(flags, SHARED)}
    kind.is_rare = flag(flags, STATE) or flag(flags, REDRIVE)
    kind.kept = flags % SHARED + (flag(flags, STATE) and STATE or 0) -- by the record
    kind.head = CLAIMED .. char(kind.kept) .. '\0\0' .. NONCE
    kinds[flags] = kind
  end
  if not record then
    if kind.shared then
      local text = sub(ask, DAY, DAY_END)
      if text ~= day_text then day_text, day = text, day_of(unpack_struct('>i4', text)) end
      local short = call('HGET', bucket_of(day, ask, ID), sub(ask, ID, ID + SHORT - 1))
      if short then
        local same = kind.envelope and sub(ask, TAIL, TAIL_REST - 1) == sub(short, 2, 4)
        local status = sub(short, 1, 1)
        answer = same and 'd' .. status .. '=' or 'r' .. status .. sub(short, 2, 4)
      end
    else
      record = call('GET', EVENT .. id)
    end
  end
  if answer then
    answers[i + 2] = answer
  elseif record or kind.is_rare then
    if not decide then decide, claim_chains = rare() end
    answers[i + 2] = decide(i, ask, kind, record)
  else
    written[n + 1], written[n + 2] = id, kind.head .. FACT_TIMES .. sub(ask, TAIL)
    n = n + 2
    answers[i + 2] = 0
  end
end

local held = claim_chains and claim_chains() or {}
if n > 0 then call('HSET', OPEN, unpack(written)) end
for key, text in pairs(held) do call('SET', key, text) end -- without a TTL: they must not expire under their holder
return answers
