-- Where attendance is kept: a hash for some of the conversations of a day, by the server's clock when an event ended.
--   <conversation> -> 4 bytes, milliseconds of the day at the first mark | 4 bytes, at the last one | marks, 4 bytes each
-- A value of a usual call fits into the compact encoding, whose values have at most 64 bytes. Of so many hashes a day
-- each stays small for up to a million conversations, and then they cost more, but work.

local HASHES, MARKS_AT, MARK_BYTES, MARKS_MAX = 8192, 9, 4, 1000

local function attendance_key(day, conversation)
  local a, b = byte(conversation, 1, 2)
  return PREFIX .. 'a:' .. day .. ':' .. (a * 256 + b) % HASHES
end
