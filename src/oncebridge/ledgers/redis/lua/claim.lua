-- Claim events. ARGV: retention, nonce, lease in microseconds, the ledger's mark, then an ask each:
--   1 flags | 2-5 day | 6-21 id | 22-24 envelope | for a state: 25-40 entity, 41-56 state, 57-64 echo window, moment |
--   content | about
-- Flags: 1 alone, 2 redrive, 4 has a content, 8 has an envelope id, 16 a shared day, 32 a state, 64 force, 128 stale counts.
-- The answers: the time, then for each ask 0 (granted, the time is the token) or
--   g token attempts | w: wants to be asked for alone | b microseconds | k about: conflict | e | s |
--   d status, same envelope, about | n: no letter to redrive
-- Or a text, where the shard is not that ledger's: it was emptied, or has begun anew since.

-- include places

if call('GET', PREFIX .. 'mark') ~= ARGV[4] then return 'another' end

local NONCE, LEASE = ARGV[2], tonumber(ARGV[3])
local FIRST = 4
local GRANTED = NONCE .. pack('>dddd', NOW, NOW + LEASE, NOW, 0)

local ids = {}
for i = FIRST + 1, #ARGV do ids[i - FIRST] = sub(ARGV[i], 6, 21) end
local records = call('HMGET', OPEN, unpack(ids))
local written, erased, letters_erased = {}, {}, {}

-- Of an ask's flags, those that its record has too: alone, content, envelope.
local function kept_flags(flags)
  return flags % 2 + flags % 16 - flags % 4
end

-- What few calls need is defined only where it is needed: that alone would take longer than a claim.
local function rare()
-- include buckets records entities claim_rare
return decide, write_days
end

-- Nearly all asks of a call are for facts of one day that nobody has seen: these take the shortest way.
local answers, heads, n, day_text, day, decide, write_days = {NOW}, {}, 0, nil, nil, nil, nil
for i, id in ipairs(ids) do
  local ask, record, answer = ARGV[FIRST + i], records[i], nil
  local flags = byte(ask, 1)
  if not record then
    if flags % 32 >= 16 then
      local text = sub(ask, 2, 5)
      if text ~= day_text then day_text, day = text, day_of(unpack_struct('>i4', text)) end
      local short = call('HGET', bucket_of(day, ask, 6), sub(ask, 6, 5 + SHORT))
      if short then
        local status = sub(short, 1, 1)
        if status ~= 'D' and sub(short, 5, 7) == sub(NONCE, 1, 3) then
          answer = status -- the repeat of a call whose reply was lost
        else
          local same = flags % 16 >= 8 and sub(ask, 22, 24) == sub(short, 2, 4)
          answer = 'd' .. status .. (same and '=' or '~')
        end
      end
    else
      record = call('GET', PREFIX .. 'e:' .. id)
    end
  end
  if answer then
    answers[i + 1] = answer
  elseif record or flags % 64 >= 32 or flags % 4 >= 2 then
    if not decide then decide, write_days = rare() end
    answers[i + 1] = decide(ask, flags, id, record)
    n = #written
  else
    local head = heads[flags]
    if not head then
      head = 'c' .. char(kept_flags(flags)) .. '\0\0' .. GRANTED
      heads[flags] = head
    end
    written[n + 1], written[n + 2] = id, head .. sub(ask, 22)
    n = n + 2
    answers[i + 1] = 0
  end
end

-- What takes memory comes first: a server that is full refuses it, and then nothing has been erased.
if n > 0 then call('HSET', OPEN, unpack(written)) end
if write_days then write_days() end
if #erased > 0 then call('HDEL', OPEN, unpack(erased)) end
if #letters_erased > 0 then call('HDEL', LETTERS, unpack(letters_erased)) end
return answers
