-- Entities, as strings: 1-8 top token | 9-16 changed | 17 how it is held | while it is: 18-25 lease until, 26-33 nonce |
-- data, which scripts do not read.

local FREE, HELD, AFTER_RUN_OUT = 'f', 'h', 'r' -- the last: held, and the previous lease ran out
local TOP_END, HOLD_AT, UNTIL_AT, HOLDER_AT, HOLDER_END = 8, 17, 18, 26, 33
local FREE_DATA_AT, HELD_DATA_AT = 18, 34
