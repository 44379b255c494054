-- Say which ledger a shard belongs to. KEYS[1]: its prefix; ARGV: the ledger's birth mark.

redis.call('SET', KEYS[1] .. 'mark', ARGV[1])
return 1
