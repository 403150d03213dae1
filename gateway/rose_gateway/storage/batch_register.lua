#!lua flags=allow-oom
-- Register a part: its lines are answered for good, and whoever goes on begins after it.
-- KEYS  state, parts (hash: what is known of each part, by its number), garbage (sorted set)
-- ARGV  epoch, runner, number, part, when its paths become garbage again, paths, ...
-- Reply: 1; 0 if it is registered with other paths; nil if another runner has the batch
local state, parts, garbage = unpack(KEYS)
local known = redis.call('HMGET', state, 'epoch', 'runner')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return false end
if redis.call('HSETNX', parts, ARGV[3], ARGV[4]) == 0 and redis.call('HGET', parts, ARGV[3]) ~= ARGV[4] then
  return 0
end
for i = 6, #ARGV do redis.call('ZADD', garbage, ARGV[5], ARGV[i]) end
return 1
