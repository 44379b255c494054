-- Records of events that are not in a bucket, as strings:
--   1 status | 2 flags | 3-4 attempts | 5-12 nonce | 13-20 token | 21-28 lease until | 29-36 changed |
--   37-44 again | 45-47 envelope | then the content's digest, if flagged | then what people want to know
-- Status: c claimed, r retry, l release, d dead, x discard; D done, e echo, s stale.
-- Flags: 1 claimed alone, 2 a letter is kept, 4 has a content, 8 has an envelope id.

local HEAD = 47

local function flag(flags, bit)
  return flags % (bit * 2) >= bit
end

local function content_of(record)
  if flag(byte(record, 2), 4) then return sub(record, HEAD + 1, HEAD + 16) end
end

local function about_of(record)
  return sub(record, flag(byte(record, 2), 4) and HEAD + 17 or HEAD + 1)
end

local SETTLED = {D = true, e = true, s = true, d = true, x = true}
