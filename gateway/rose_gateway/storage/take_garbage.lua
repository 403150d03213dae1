#!lua flags=allow-oom
-- Which paths may be deleted now. For a while nobody else is told of them.
-- KEYS  garbage (sorted set: paths by when they may be deleted, in ms)
-- ARGV  the most paths, ms until they are told again
-- Reply: paths
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, path in ipairs(due) do redis.call('ZADD', KEYS[1], now + ARGV[2], path) end
return due
