#!lua flags=allow-oom
-- Set fields of a batch that have no value yet, and its status if it is `from` still: it may have been
-- cancelled.
-- KEYS  state        ARGV  epoch, runner, from, to, field, value, ...
-- Reply: its status; nil if another runner has it
local state = KEYS[1]
local known = redis.call('HMGET', state, 'epoch', 'runner', 'status')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return false end
for i = 5, #ARGV, 2 do redis.call('HSETNX', state, ARGV[i], ARGV[i + 1]) end
if known[3] ~= ARGV[3] then return known[3] end
redis.call('HSET', state, 'status', ARGV[4], ARGV[4] .. '_at', redis.call('TIME')[1])
return ARGV[4]
