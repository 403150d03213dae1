#!lua flags=allow-oom
-- Forget a file. What it consists of becomes garbage.
-- KEYS  file (hash), the owner's files, those of its purpose, expiring, garbage (sorted sets), stored (hash: the
--       owner's files and bytes)
-- ARGV  id, owner
-- Reply: its paths, a line each; nil where the owner has no such file
local file, all, of_purpose, expiring, garbage, stored = unpack(KEYS)
local id, owner = ARGV[1], ARGV[2]
local known = redis.call('HMGET', file, 'owner', 'parts', 'bytes')
if known[1] ~= owner then return nil end
local now = now_ms()
local parts = known[2] or ''
for path in string.gmatch(parts, '[^\n]+') do redis.call('ZADD', garbage, now, path) end
redis.call('DEL', file)
redis.call('HINCRBY', stored, 'bytes', -(tonumber(known[3]) or 0))
if redis.call('HINCRBY', stored, 'files', -1) <= 0 then redis.call('DEL', stored) end
redis.call('ZREM', all, id)
redis.call('ZREM', of_purpose, id)
redis.call('ZREM', expiring, id)
return parts
