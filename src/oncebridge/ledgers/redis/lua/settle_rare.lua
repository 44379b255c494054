-- Part of settle.lua: whatever is not a fact that is done.

-- Whether a settle comes again whose reply was lost: then its own outcome is there.
local function is_repeat(settlement, flags, id, record)
  local status = sub(settlement, 1, 1)
  if not record and status == 'D' and flag(flags, 16) then
    local day = day_of(unpack_struct('>i4', settlement, 3))
    local short = call('HGET', bucket_of(day, id, 1), sub(id, 1, SHORT))
    return short and sub(short, 1, 1) == 'D' and sub(short, 5, 7) == sub(settlement, 35, 37)
  end
  record = record or call('GET', PREFIX .. 'e:' .. id)
  return record and sub(record, 1, 1) == status and sub(record, 13, 20) == sub(settlement, 23, 30)
end

local function free(settlement, entity, record)
  entity.lease, entity.changed, entity.unsure = 0, NOW, true
  if sub(settlement, 1, 1) ~= 'D' then return end
  local text = sub(settlement, 78, 78 + byte(settlement, 78))
  local moment, line = read_moment(text), read_moment(entity.line)
  if older(moment, line) or not believable(moment) then return end
  entity.state, entity.moment, entity.line = sub(settlement, 62, 77), text, filled(moment, line)
  entity.unsure, entity.about = false, about_of(record)
end

local function finish(settlement, status, flags, id, record)
  local before = byte(record, 2)
  if status == 'D' and flag(flags, 16) then
    into_bucket(day_of(unpack_struct('>i4', settlement, 3)), id, sub(settlement, 31, 37))
    erased[#erased + 1] = id
    if flag(before, 2) then letters_erased[#letters_erased + 1] = id end
    return
  end
  local attempts, again = unpack_struct('>H', record, 3), 0
  if status == 'r' or status == 'd' then attempts = attempts + 1 end
  if status == 'r' then again = NOW + unpack_struct('>d', settlement, 38) end
  local kept = before
  if status == 'd' and not flag(before, 2) then kept = kept + 2 end
  if (status == 'D' or status == 'x') and flag(before, 2) then
    kept = kept - 2
    letters_erased[#letters_erased + 1] = id
  end
  local ended = status .. char(kept) .. pack('>H', attempts) .. '\0\0\0\0\0\0\0\0'
    .. sub(record, 13, 20) .. pack('>ddd', 0, NOW, again) .. sub(record, 45)
  if status == 'D' then
    alone_with_life(id, ended)
    erased[#erased + 1] = id
  else
    written[#written + 1], written[#written + 2] = id, ended
  end
  if status == 'd' then
    local at = 46
    if flag(flags, 32) then at = 79 + byte(settlement, 78) end
    letters[#letters + 1], letters[#letters + 2] = id, sub(settlement, at)
  end
end

local function settle(settlement, flags, id, record)
  if not record or sub(record, 1, 1) ~= 'c' or sub(record, 13, 20) ~= sub(settlement, 23, 30) then
    return is_repeat(settlement, flags, id, record) and 1 or 0
  end
  if flag(flags, 32) then
    local at = sub(settlement, 46, 61)
    local entity = read_entity(call('GET', PREFIX .. 'n:' .. at))
    if entity.token ~= unpack_struct('>d', settlement, 23) then return 0 end
    free(settlement, entity, record)
    write_entity(at, entity)
  end
  finish(settlement, sub(settlement, 1, 1), flags, id, record)
  return 1
end
