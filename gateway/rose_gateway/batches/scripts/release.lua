#!lua flags=allow-oom
-- Leave a batch to any runner, after a pause.
-- KEYS  state, unfinished        ARGV  id, epoch, pause ms, 1 if the runner has failed with it, else 0
-- Reply: how often runners have failed with it; nil if another runner has it
local state, unfinished = KEYS[1], KEYS[2]
if redis.call('HGET', state, 'epoch') ~= ARGV[2] then return false end
redis.call('ZADD', unfinished, 'XX', now_ms() + ARGV[3], ARGV[1])
return redis.call('HINCRBY', state, 'failures', ARGV[4])
