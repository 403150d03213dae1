-- Keep a new batch, where runners find it. A repeat changes nothing.
-- KEYS  state, unfinished, the owner's batches (sorted set of equal scores: ids, which sort by age)
-- ARGV  id, ttl ms, smallest id that may still be kept, field, value, ...
local state, unfinished, index = unpack(KEYS)
if redis.call('EXISTS', state) == 1 then return 0 end
redis.call('HSET', state, unpack(ARGV, 4))
redis.call('PEXPIRE', state, ARGV[2])
redis.call('ZREMRANGEBYLEX', index, '-', '(' .. ARGV[3])
redis.call('ZADD', index, 0, ARGV[1])
redis.call('PEXPIRE', index, ARGV[2])
redis.call('ZADD', unfinished, now_ms(), ARGV[1])
return 1
