-- List letters that a worker of an earlier version has kept, and drop those that it has erased. ARGV: ids.
-- Returns how many have changed.

-- include places records letters

local changed = 0
for _, id in ipairs(ARGV) do
  local is_listed = call('HEXISTS', HEADS, id) == 1
  if call('HEXISTS', LETTERS, id) == 0 then
    if is_listed then
      unlist_letter(id)
      changed = changed + 1
    end
  elseif not is_listed then
    local record = call('HGET', OPEN, id)
    if record then
      list_letter(id, record, call('HGET', LETTERS, id), unpack_struct('>d', record, CHANGED_AT))
      changed = changed + 1
    end
  end
end
write_lists()
return changed
