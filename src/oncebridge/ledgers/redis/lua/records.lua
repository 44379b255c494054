-- Records of events that are in no bucket, as strings:
--   1 status | 2 flags | 3-4 attempts | 5-12 nonce | 13-20 token | 21-28 lease until | 29-36 changed | 37-44 again |
--   45-47 envelope | a state's entity | the content's digest, if flagged | what people want to know
-- A state has no lease of its own.

local CLAIMED, RETRY, RELEASE, DEAD, DISCARD, DONE, ECHO, STALE = 'c', 'r', 'l', 'd', 'x', 'D', 'e', 's'
local SETTLED = {[DONE] = true, [ECHO] = true, [STALE] = true, [DEAD] = true, [DISCARD] = true}

-- The flags of records and asks.
local ALONE, LETTER, CONTENT, ENVELOPE, SHARED, STATE, REDRIVE = 1, 2, 4, 8, 16, 32, 64

local ATTEMPTS_AT, NONCE_AT, TOKEN_AT, LEASE_AT, CHANGED_AT, ENVELOPE_AT, REST_AT = 3, 5, 13, 21, 29, 45, 48
local DIGEST = 16 -- bytes of an entity, and of a content

local function flag(flags, bit)
  return flags % (bit * 2) >= bit
end

local function content_at(flags)
  return flag(flags, STATE) and REST_AT + DIGEST or REST_AT
end

local function content_of(record)
  local flags = byte(record, 2)
  if not flag(flags, CONTENT) then return end
  local at = content_at(flags)
  return sub(record, at, at + DIGEST - 1)
end

local function about_of(record)
  local flags = byte(record, 2)
  return sub(record, content_at(flags) + (flag(flags, CONTENT) and DIGEST or 0))
end
