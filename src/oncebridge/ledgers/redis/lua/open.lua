-- Agree on what a ledger is first opened with. KEYS[1]: its hash; ARGV: names and values, for whoever comes first.

if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], unpack(ARGV)) end
return redis.call('HGETALL', KEYS[1])
