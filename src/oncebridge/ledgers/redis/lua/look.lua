-- Look events up where a claim would, and change nothing. ARGV, an event for a handler each, as an ask begins:
--   1 flags | 2-5 day | 6-21 id
-- The answers: the time; then for each its record, its value in a bucket, or nil.

-- include places records

local DAY, DAY_END, ID, ID_END = 2, 5, 6, 21

local answers = {NOW}
for i, place in ipairs(ARGV) do
  local id = sub(place, ID, ID_END)
  local found = call('HGET', OPEN, id)
  if not found and flag(byte(place, 1), SHARED) then
    local day = day_of(unpack_struct('>i4', sub(place, DAY, DAY_END)))
    found = call('HGET', bucket_of(day, id, 1), sub(id, 1, SHORT))
  elseif not found then
    found = call('GET', EVENT .. id)
  end
  answers[i + 1] = found
end
return answers
