-- Read the counts of pages. KEYS[1]: what pages begin with; ARGV: the pages.

local found = {}
for at, page in ipairs(ARGV) do found[at] = redis.call('HGETALL', KEYS[1] .. 'c:' .. page) end
return found
