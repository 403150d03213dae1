#!lua flags=allow-oom
-- Keep how far a batch has come: the lines up to there are answered for good, and whoever goes on begins after
-- them.
-- KEYS  state, checkpoint        ARGV  epoch, runner, checkpoint, when it expires (Unix ms)
-- Reply: 1; nil if another runner has the batch
local state, checkpoint = unpack(KEYS)
local known = redis.call('HMGET', state, 'epoch', 'runner')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return false end
redis.call('SET', checkpoint, ARGV[3], 'PXAT', ARGV[4])
return 1
