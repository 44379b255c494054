-- Entities, as strings: 1-8 token | 9-16 lease until | 17-24 changed | 25 flags (1 unsure, 2 has a state) |
-- the newest state's 16 bytes, if flagged | its moment | the line | what people want to know of the newest.
-- A moment: its length (1 byte) | flags (1 version, 2 echoes) | version | number of times | each: 1 and the time, or 0.
-- Times and versions are two doubles, since one cannot hold them exactly: millions, and the rest.

local AHEAD_US = 600000000
local VERSIONS_BEHIND_MAX = 1000
local NO_MOMENT = char(2, 2, 0)

local function read_moment(text)
  local moment = {text = text, echoes = false, n = 0}
  local flags, at = byte(text, 2), 3
  moment.echoes = flags >= 2
  if flags % 2 == 1 then
    moment.high, moment.low = unpack_struct('>dd', text, at)
    at = at + 16
  end
  moment.n = byte(text, at)
  at = at + 1
  for i = 1, moment.n do
    if byte(text, at) == 1 then
      local high, low = unpack_struct('>dd', text, at + 1)
      moment[i] = {high, low}
      at = at + 17
    else
      moment[i] = false
      at = at + 1
    end
  end
  return moment
end

local function write_moment(moment)
  local parts = {moment.high and pack('>dd', moment.high, moment.low) or '', char(moment.n)}
  for i = 1, moment.n do
    local time = moment[i]
    parts[#parts + 1] = time and '\1' .. pack('>dd', time[1], time[2]) or '\0'
  end
  local text = char((moment.high and 1 or 0) + (moment.echoes and 2 or 0)) .. table.concat(parts)
  return char(#text) .. text
end

local function less(a_high, a_low, b_high, b_low)
  return a_high < b_high or (a_high == b_high and a_low < b_low)
end

local function older(one, other)
  if one.high and other.high then
    local behind = (other.high - one.high) * 1000000 + (other.low - one.low)
    return behind > 0 and behind <= VERSIONS_BEHIND_MAX
  end
  local earlier = false
  for i = 1, math.min(one.n, other.n) do
    local a, b = one[i], other[i]
    if a and b then
      if less(b[1], b[2], a[1], a[2]) then return false end
      if less(a[1], a[2], b[1], b[2]) then earlier = true end
    end
  end
  return earlier
end

local function within_window(one, other, window_ns)
  if not (one.echoes and other.echoes) or one.n == 0 or one.n ~= other.n then return false end
  for i = 1, one.n do
    local a, b = one[i], other[i]
    if a and b then
      if math.abs((a[1] - b[1]) * 1000000 + (a[2] - b[2])) > window_ns then return false end
    elseif a or b then
      return false
    end
  end
  return true
end

local function believable(moment)
  if moment.high then return true end
  local latest
  for i = 1, moment.n do
    local time = moment[i]
    if time then
      local us = time[1] * 1000 + floor(time[2] / 1000)
      if not latest or us > latest then latest = us end
    end
  end
  return latest ~= nil and latest <= NOW + AHEAD_US
end

-- Take from the line what a moment does not say.
local function filled(moment, line)
  local joined = {n = math.max(moment.n, line.n), echoes = moment.echoes, high = moment.high, low = moment.low}
  if not joined.high then joined.high, joined.low = line.high, line.low end
  for i = 1, joined.n do joined[i] = moment[i] or line[i] or false end
  return write_moment(joined)
end

local function read_entity(text)
  if not text then
    return {token = 0, lease = 0, changed = 0, unsure = false, moment = NO_MOMENT, line = NO_MOMENT, about = ''}
  end
  local entity = {}
  entity.token, entity.lease, entity.changed = unpack_struct('>ddd', text)
  local flags, at = byte(text, 25), 26
  entity.unsure = flags % 2 == 1
  if flags >= 2 then
    entity.state = sub(text, 26, 41)
    at = 42
  end
  local ends = at + byte(text, at)
  entity.moment = sub(text, at, ends)
  at = ends + 1
  ends = at + byte(text, at)
  entity.line = sub(text, at, ends)
  entity.about = sub(text, ends + 1)
  return entity
end

local function write_entity(id, entity)
  local flags = (entity.unsure and 1 or 0) + (entity.state and 2 or 0)
  local text = pack('>ddd', entity.token, entity.lease, entity.changed) .. char(flags)
    .. (entity.state or '') .. entity.moment .. entity.line .. entity.about
  if entity.lease > 0 then
    call('SET', PREFIX .. 'n:' .. id, text) -- its holder may come late, but nobody forgets it meanwhile
  else
    call('SET', PREFIX .. 'n:' .. id, text, 'EX', RETENTION_S)
  end
end
