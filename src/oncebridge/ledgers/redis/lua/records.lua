-- Records of events that are in no bucket, as strings:
--   1 status | 2 flags | 3-4 attempts | 5-12 nonce | 13-20 token | 21-28 lease until | 29-36 changed | 37-44 again |
--   45-47 envelope | a state's entity | the content's digest, if flagged | fields for people
-- A state has no lease of its own.

local CLAIMED, RETRY, DEAD, DISCARD = 'c', 'r', 'd', 'x' -- l: released, D: done, e: echo, s: stale
local SETTLED = {D = true, e = true, s = true, [DEAD] = true, [DISCARD] = true}

-- The flags of records and asks.
local ALONE, LETTER, CONTENT, ENVELOPE, SHARED, STATE, REDRIVE = 1, 2, 4, 8, 16, 32, 64

local ATTEMPTS_AT, NONCE_AT, TOKEN_AT, LEASE_AT, CHANGED_AT, ENVELOPE_AT, REST_AT = 3, 5, 13, 21, 29, 45, 48
local NO_NONCE = '\0\0\0\0\0\0\0\0'

local function flag(flags, bit)
  return flags % (bit * 2) >= bit
end
