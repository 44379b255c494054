-- Write notes of a page. KEYS[1]: what pages begin with; ARGV: page, milliseconds to keep it, how many of the newest
-- to keep or 0 for all, then names and values.

local names, values = KEYS[1] .. 'n:' .. ARGV[1], KEYS[1] .. 'v:' .. ARGV[1]
for at = 4, #ARGV, 2 do
  redis.call('HSET', values, ARGV[at], ARGV[at + 1])
  redis.call('ZADD', names, 0, ARGV[at])
end
local newest = tonumber(ARGV[3])
if newest > 0 then
  local over = redis.call('ZCARD', names) - newest
  if over > 0 then
    for _, name in ipairs(redis.call('ZRANGE', names, 0, over - 1)) do redis.call('HDEL', values, name) end
    redis.call('ZREMRANGEBYRANK', names, 0, over - 1)
  end
end
redis.call('PEXPIRE', names, ARGV[2])
redis.call('PEXPIRE', values, ARGV[2])
return 1
