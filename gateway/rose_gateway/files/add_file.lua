-- Make a file known, and what it consists of no garbage. A repeat changes nothing.
-- KEYS  file (hash), the owner's files, those of its purpose, expiring, garbage (sorted sets)
-- ARGV  id, when it expires in Unix seconds ("": never), number of texts, fields and values, paths
local file, all, of_purpose, expiring, garbage = unpack(KEYS)
local id, expires_at, texts = ARGV[1], ARGV[2], tonumber(ARGV[3])
redis.call('HSET', file, unpack(ARGV, 4, 3 + texts))
redis.call('ZADD', all, 0, id)
redis.call('ZADD', of_purpose, 0, id)
if expires_at ~= '' then redis.call('ZADD', expiring, expires_at, id) end
for i = 4 + texts, #ARGV do redis.call('ZREM', garbage, ARGV[i]) end
return 1
