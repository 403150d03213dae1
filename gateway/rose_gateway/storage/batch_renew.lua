#!lua flags=allow-oom
-- Go on with a batch.
-- KEYS  state, unfinished        ARGV  id, epoch, runner, lease ms
-- Reply: its status; nil if another runner has it
local state, unfinished = KEYS[1], KEYS[2]
local known = redis.call('HMGET', state, 'epoch', 'runner', 'status')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return false end
redis.call('ZADD', unfinished, 'XX', now_ms() + ARGV[4], ARGV[1])
return known[3]
