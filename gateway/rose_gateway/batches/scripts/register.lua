#!lua flags=allow-oom
-- Register a part: its lines are answered for good, and whoever goes on begins after it.
-- KEYS  state, parts (hash: what is known of each part, by its number), garbage (sorted set)
-- ARGV  epoch, number, part, when its paths become garbage again, paths, ...
-- Reply: 1; 0 if it is registered with other paths; nil if another runner has the batch
local state, parts, garbage = unpack(KEYS)
if redis.call('HGET', state, 'epoch') ~= ARGV[1] then return false end
if redis.call('HSETNX', parts, ARGV[2], ARGV[3]) == 0 and redis.call('HGET', parts, ARGV[2]) ~= ARGV[3] then
  return 0
end
for i = 5, #ARGV do redis.call('ZADD', garbage, ARGV[4], ARGV[i]) end
return 1
