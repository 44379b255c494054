-- Mark the ledger that a shard belongs to. KEYS[1]: its prefix; ARGV: the ledger's mark.

redis.call('SET', KEYS[1] .. 'mark', ARGV[1])
return 1
