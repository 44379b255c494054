-- End claims. ARGV: retention, then a settlement each:
--   1 status | 2 flags (16 a shared day, 32 a state) | 3-6 day | 7-22 id | 23-30 token |
--   31-37 what a bucket says of it: status, envelope, the token's last bytes | 38-45 again in microseconds |
--   for a state: 46-61 entity, 62-77 state, moment | letter


-- include places buckets

local FIRST = 1
local ids = {}
for i = FIRST + 1, #ARGV do ids[i - FIRST] = sub(ARGV[i], 7, 22) end
local records = call('HMGET', OPEN, unpack(ids))
local written, erased, letters, letters_erased = {}, {}, {}, {}

-- What few calls need is defined only where it is needed.
local function rare()
-- include records entities settle_rare
return settle
end

-- Nearly all ends are of facts that are done, of one day: these take the shortest way.
local kept, gone, day_text, day, settle = {}, 0, nil, nil, nil
for i, id in ipairs(ids) do
  local settlement, record = ARGV[FIRST + i], records[i]
  if record and byte(settlement, 1) == 68 and byte(settlement, 2) == 16 and byte(record, 1) == 99
    and byte(record, 2) % 4 < 2 and sub(record, 13, 20) == sub(settlement, 23, 30) then
    local text = sub(settlement, 3, 6)
    if text ~= day_text then day_text, day = text, day_of(unpack_struct('>i4', text)) end
    into_bucket(day, id, sub(settlement, 31, 37))
    erased[gone + 1] = id
    gone = gone + 1
    kept[i] = 1
  else
    if not settle then settle = rare() end
    kept[i] = settle(settlement, byte(settlement, 2), id, record)
    gone = #erased
  end
end

-- What takes memory comes first: a server that is full refuses it, and then nothing has been erased.
if #written > 0 then call('HSET', OPEN, unpack(written)) end
if #letters > 0 then call('HSET', LETTERS, unpack(letters)) end
write_days()
if gone > 0 then call('HDEL', OPEN, unpack(erased)) end
if #letters_erased > 0 then call('HDEL', LETTERS, unpack(letters_erased)) end
return kept
