-- Extend claims. ARGV: lease in microseconds, then a claim each:
--   f | 2-17 id | 18-25 token; or for a chain: s | 2-17 entity | 18-25 top token

-- include places records entities

local BEFORE = 1
local FACT, AT, AT_END, TOKEN, TOKEN_END = 'f', 2, 17, 18, 25
local UNTIL_TEXT = pack('>d', NOW + tonumber(ARGV[1]))

local function extend_fact(id, token)
  local record = call('HGET', OPEN, id)
  if not record or sub(record, 1, 1) ~= CLAIMED or sub(record, TOKEN_AT, LEASE_AT - 1) ~= token then return 0 end
  call('HSET', OPEN, id, sub(record, 1, LEASE_AT - 1) .. UNTIL_TEXT .. sub(record, CHANGED_AT))
  return 1
end

local function extend_chain(key, top)
  local text = call('GET', key)
  if not text or sub(text, 1, TOP_END) ~= top or sub(text, HOLD_AT, HOLD_AT) == FREE then return 0 end
  call('SET', key, sub(text, 1, HOLD_AT) .. UNTIL_TEXT .. sub(text, HOLDER_AT))
  return 1
end

local kept = {}
for i = 1, #ARGV - BEFORE do
  local claim = ARGV[BEFORE + i]
  local at, token = sub(claim, AT, AT_END), sub(claim, TOKEN, TOKEN_END)
  if sub(claim, 1, 1) == FACT then
    kept[i] = extend_fact(at, token)
  else
    kept[i] = extend_chain(ENTITY .. at, token)
  end
end
return kept
