-- Dead letters in order and by group, and events by subject: for people, and never needed to claim or settle.

local DIED, HEADS, GROUPS, SUBJECT = PREFIX .. 'died', PREFIX .. 'heads', PREFIX .. 'groups', PREFIX .. 's:'
local SUBJECT_MAX = 500 -- events that are listed of one

local SHORT_ARRAY, SHORT_BYTES = 144, 196 -- of MessagePack; the library here knows no bytes

-- The fields for people of a record: envelope, topic, time, conversation, user, handler, key.
local function people_of(record)
  local flags = byte(record, 2)
  local at = REST_AT + (flag(flags, STATE) and 16 or 0) + (flag(flags, CONTENT) and 16 or 0)
  local people, number = {}, byte(record, at) - SHORT_ARRAY
  for i = 1, number do
    if byte(record, at + 1) == SHORT_BYTES then
      local length = byte(record, at + 2)
      people[i] = sub(record, at + 3, at + 2 + length)
      at = at + 2 + length
    else
      at, people[i] = cmsgpack.unpack_one(record, at)
    end
  end
  return people
end

-- The group of a letter: handler, reason, topic. A letter is an array, and the reason comes first.
local function head_of(record, letter)
  local people, reason, _ = people_of(record), '', nil
  if letter ~= '' then _, reason = cmsgpack.unpack_one(letter, 1) end
  return cmsgpack.pack({people[6] or '', reason, people[2] or ''})
end

local died, heads, unlisted, grouped = {}, {}, {}, {}

local function leave_group(id)
  local head = call('HGET', HEADS, id)
  if head then grouped[head] = (grouped[head] or 0) - 1 end
  return head
end

-- List a letter, as of a time; one that is listed already moves.
local function list_letter(id, record, letter, died_us)
  leave_group(id)
  local head = head_of(record, letter)
  grouped[head] = (grouped[head] or 0) + 1
  died[#died + 1], died[#died + 2] = died_us, id
  heads[#heads + 1], heads[#heads + 2] = id, head
end

local function unlist_letter(id)
  leave_group(id)
  unlisted[#unlisted + 1] = id
end

-- Write what was listed; once everything else is written, what was unlisted is erased.
local function write_lists()
  if #died > 0 then
    call('ZADD', DIED, unpack(died))
    call('HSET', HEADS, unpack(heads))
  end
  for head, change in pairs(grouped) do
    if change ~= 0 and tonumber(call('ZINCRBY', GROUPS, change, head)) <= 0 then call('ZREM', GROUPS, head) end
  end
  if #unlisted > 0 then
    call('ZREM', DIED, unpack(unlisted))
    call('HDEL', HEADS, unpack(unlisted))
  end
end
