-- Look up what came of conversations. ARGV: the first day to look at, the retention in seconds, and conversations.
-- For each the answer is a list: day, value, day, value, ...

-- include places attendance

local CONVERSATIONS = 3
local first, found = math.max(tonumber(ARGV[1]), TODAY - 2 - floor(ARGV[2] / DAY_S)), {}
for i = CONVERSATIONS, #ARGV do
  local days = {}
  for day = first, TODAY do
    local value = call('HGET', attendance_key(day, ARGV[i]), ARGV[i])
    if value then days[#days + 1], days[#days + 2] = day, value end
  end
  found[i - CONVERSATIONS + 1] = days
end
return found
