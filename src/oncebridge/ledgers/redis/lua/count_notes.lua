-- Add numbers to the counts of a page. KEYS[1]: what pages begin with; ARGV: page, milliseconds to keep it, then names
-- and numbers.

local key = KEYS[1] .. 'c:' .. ARGV[1]
for at = 3, #ARGV, 2 do redis.call('HINCRBY', key, ARGV[at], ARGV[at + 1]) end
redis.call('PEXPIRE', key, ARGV[2])
return 1
