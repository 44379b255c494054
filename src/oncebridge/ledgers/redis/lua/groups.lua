-- Count letters. ARGV: how many groups at most. The answers: letters, letters listed, and groups with their numbers.

-- include places records letters

local found = call('ZREVRANGE', GROUPS, 0, ARGV[1] - 1, 'WITHSCORES')
return {call('HLEN', LETTERS), call('ZCARD', DIED), found}
