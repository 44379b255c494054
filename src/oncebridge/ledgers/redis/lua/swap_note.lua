-- Change a note, if it is as it was. KEYS[1]: what pages begin with; ARGV: page, milliseconds to keep it, name, the
-- value before and after: '-' for none, else '+' and the value.

local names, values = KEYS[1] .. 'n:' .. ARGV[1], KEYS[1] .. 'v:' .. ARGV[1]
local found = redis.call('HGET', values, ARGV[3])
if (found and '+' .. found or '-') ~= ARGV[4] then return 0 end
if ARGV[5] == '-' then
  redis.call('HDEL', values, ARGV[3])
  redis.call('ZREM', names, ARGV[3])
else
  redis.call('HSET', values, ARGV[3], string.sub(ARGV[5], 2))
  redis.call('ZADD', names, 0, ARGV[3])
end
redis.call('PEXPIRE', names, ARGV[2])
redis.call('PEXPIRE', values, ARGV[2])
return 1
