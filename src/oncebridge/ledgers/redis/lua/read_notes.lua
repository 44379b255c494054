-- Read notes of a page, from the last name on. KEYS[1]: what pages begin with; ARGV: page, the bound that names are
-- below, and how many.

local names = redis.call('ZREVRANGEBYLEX', KEYS[1] .. 'n:' .. ARGV[1], ARGV[2], '-', 'LIMIT', 0, ARGV[3])
if #names == 0 then return {{}, {}} end
return {names, redis.call('HMGET', KEYS[1] .. 'v:' .. ARGV[1], unpack(names))}
