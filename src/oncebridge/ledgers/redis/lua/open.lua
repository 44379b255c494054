-- Make the agreement of a ledger, or read it. KEYS[1]: its hash; ARGV: names and values, if there is none yet.

if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], unpack(ARGV)) end
return redis.call('HGETALL', KEYS[1])
