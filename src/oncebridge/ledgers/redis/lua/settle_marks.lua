-- Part of settle.lua: the marks of ends in force. Each conversation is read once and written once in a call.

local attended, came = {}, {}

local function holds(marks, mark)
  local at = string.find(marks, mark, MARKS_AT, true)
  while at and (at - MARKS_AT) % MARK_BYTES ~= 0 do at = string.find(marks, mark, at + 1, true) end
  return at
end

local function add_mark(settlement)
  local conversation, mark = sub(settlement, -MARKED_BYTES, -1 - MARK_BYTES), sub(settlement, -MARK_BYTES)
  local one = attended[conversation]
  if not one then
    one = {key = attendance_key(TODAY, conversation), conversation = conversation}
    one.value = call('HGET', one.key, conversation)
    one.is_new = not one.value
    local now = pack('>I4', (NOW - TODAY * DAY_S * 1000000) / 1000)
    one.value = (one.is_new and now or sub(one.value, 1, 4)) .. now .. sub(one.value or '', MARKS_AT)
    attended[conversation], came[#came + 1] = one, one
  end
  if #one.value < MARKS_AT - 1 + MARKS_MAX * MARK_BYTES and not holds(one.value, mark) then
    one.value = one.value .. mark
  end
end

local function write_marks()
  for _, one in ipairs(came) do
    call('HSET', one.key, one.conversation, one.value)
    if one.is_new then call('EXPIRE', one.key, 2 * DAY_S + RETENTION_S) end
  end
end
