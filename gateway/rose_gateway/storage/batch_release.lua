#!lua flags=allow-oom
-- Leave a batch to any runner, after a pause.
-- KEYS  state, unfinished        ARGV  id, epoch, runner, pause ms, 1 if the runner has failed with it, else 0
-- Reply: how often runners have failed with it; nil if another runner has it
local state, unfinished = KEYS[1], KEYS[2]
local known = redis.call('HMGET', state, 'epoch', 'runner')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return false end
redis.call('ZADD', unfinished, 'XX', now_ms() + ARGV[4], ARGV[1])
redis.call('HSET', state, 'running', 0, 'preparing', '')
return redis.call('HINCRBY', state, 'failures', ARGV[5])
