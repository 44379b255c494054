-- Look up one event. ARGV: an id for each handler that may have it. For each the answer is
--   {}, {record, letter, 'record'}, or {the bucket's value, day}

-- include places

local found = {}
local all_days = call('HKEYS', DAYS)
for i, id in ipairs(ARGV) do
  local record = call('HGET', OPEN, id) or call('GET', EVENT .. id)
  if record then
    found[i] = {record, call('HGET', LETTERS, id) or '', 'record'}
  else
    found[i] = {}
    for _, day in ipairs(all_days) do
      local short = call('HGET', bucket_of(day_of(tonumber(day)), id, 1), sub(id, 1, SHORT))
      if short then found[i] = {short, day} end
    end
  end
end
return found
