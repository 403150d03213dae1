#!lua flags=allow-oom
-- Note the line that a runner is about to prepare: if it is no more afterwards, that line may be why.
-- KEYS  state        ARGV  epoch, runner, number of the line; empty when it is done
-- Reply: 1; nil if another runner has the batch
local state = KEYS[1]
local known = redis.call('HMGET', state, 'epoch', 'runner')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return false end
redis.call('HSET', state, 'preparing', ARGV[3])
return 1
