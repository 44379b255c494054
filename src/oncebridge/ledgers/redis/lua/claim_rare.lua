-- Part of claim.lua: whatever is not a fact that nobody has seen.

-- Where content and about begin: behind what only states have.
local function ask_rest(ask, flags)
  if not flag(flags, 32) then return 25 end
  return 66 + byte(ask, 65)
end

local function settle_now(ask, flags, id, record, status)
  local envelope = sub(ask, 22, 24)
  if flag(flags, 16) then
    into_bucket(day_of(unpack_struct('>i4', ask, 2)), id, status .. envelope .. sub(NONCE, 1, 3))
  else
    local kept = char(kept_flags(flags) - flags % 2)
    alone_with_life(id, status .. kept .. '\0\0' .. NONCE .. pack('>dddd', 0, 0, NOW, 0) .. envelope
      .. sub(ask, ask_rest(ask, flags)))
  end
  if record then
    erased[#erased + 1] = id
    if flag(byte(record, 2), 2) then letters_erased[#letters_erased + 1] = id end
  end
end

local function grant(ask, flags, id, record, token, lease)
  local attempts, kept = 0, kept_flags(flags)
  local rest = sub(ask, ask_rest(ask, flags))
  if record then
    local status, before = sub(record, 1, 1), byte(record, 2)
    attempts = unpack_struct('>H', record, 3)
    if status == 'd' then
      attempts = 0 -- redriven: a new start
    elseif status == 'c' and flag(before, 1) then
      attempts = attempts + 1
    end
    if flag(before, 2) then kept = kept + 2 end
    if flag(before, 4) and not flag(flags, 4) then
      kept = kept + 4
      rest = content_of(record) .. rest
    end
  end
  written[#written + 1] = id
  written[#written + 1] = 'c' .. char(kept) .. pack('>H', attempts) .. NONCE .. pack('>dddd', token, lease, NOW, 0)
    .. sub(ask, 22, 24) .. rest
  return 'g' .. pack('>dH', token, attempts + 1)
end

local function is_ran_out(record, flags)
  return record and sub(record, 1, 1) == 'c' and flags % 2 == 0
end

local function claim_fact(ask, flags, id, record)
  local token = NOW
  if record then
    local lease = unpack_struct('>d', record, 21)
    if sub(record, 1, 1) == 'c' and lease > NOW then return 'b' .. pack('>d', lease - NOW) end
    if is_ran_out(record, flags) then return 'w' end
    token = math.max(unpack_struct('>d', record, 13) + 1, NOW)
  end
  return grant(ask, flags, id, record, token, NOW + LEASE)
end

local function claim_state(ask, flags, id, record)
  local at = sub(ask, 25, 40)
  local entity = read_entity(call('GET', PREFIX .. 'n:' .. at))
  if entity.lease > NOW then return 'b' .. pack('>d', entity.lease - NOW) end
  if entity.state and not flag(flags, 64) then
    local window = unpack_struct('>d', ask, 57)
    local moment = read_moment(sub(ask, 65, 65 + byte(ask, 65)))
    local line = read_moment(entity.line)
    if not entity.unsure and entity.lease == 0 and entity.state == sub(ask, 41, 56)
      and within_window(moment, read_moment(entity.moment), window) then
      settle_now(ask, flags, id, record, 'e')
      if older(line, moment) and believable(moment) then entity.line = filled(moment, line) end
      entity.changed = NOW
      write_entity(at, entity)
      return 'e'
    end
    if flag(flags, 128) and older(moment, line) then
      settle_now(ask, flags, id, record, 's')
      return 's'
    end
  end
  if is_ran_out(record, flags) then return 'w' end
  local token = math.max(entity.token + 1, NOW)
  entity.token, entity.lease, entity.changed = token, NOW + LEASE, NOW
  write_entity(at, entity)
  return grant(ask, flags, id, record, token, 0)
end

-- Answer the repeat of a call whose reply was lost as that reply did.
local function own_answer(ask, flags, record)
  local status = sub(record, 1, 1)
  if sub(record, 5, 12) ~= NONCE then return end
  if status == 'e' or status == 's' then return status end
  if status ~= 'c' then return end
  local token = unpack_struct('>d', record, 13)
  if flag(flags, 32) then
    local entity = read_entity(call('GET', PREFIX .. 'n:' .. sub(ask, 25, 40)))
    if entity.token ~= token then return end
  end
  return 'g' .. pack('>dH', token, unpack_struct('>H', record, 3) + 1)
end

local function decide(ask, flags, id, record)
  if record then
    local content = flag(flags, 4) and content_of(record)
    if content and content ~= sub(ask, ask_rest(ask, flags), ask_rest(ask, flags) + 15) then
      return 'k' .. about_of(record)
    end
    local own = own_answer(ask, flags, record)
    if own then return own end
    local status = sub(record, 1, 1)
    if SETTLED[status] and not (flag(flags, 2) and status == 'd') then
      local same = flag(flags, 8) and flag(byte(record, 2), 8) and sub(ask, 22, 24) == sub(record, 45, 47)
      return 'd' .. status .. (same and '=' or '~') .. about_of(record)
    end
  end
  if flag(flags, 2) and not (record and flag(byte(record, 2), 2)) then return 'n' end
  if flag(flags, 32) then return claim_state(ask, flags, id, record) end
  return claim_fact(ask, flags, id, record)
end
