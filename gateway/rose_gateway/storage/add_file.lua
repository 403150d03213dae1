-- Make a file known, and what it consists of no garbage. A repeat changes nothing.
-- KEYS  file (hash), the owner's files, those of its purpose, expiring, garbage (sorted sets), stored (hash: the
--       owner's files and bytes)
-- ARGV  id, when it expires in Unix seconds ("": never), most files and bytes of its owner (0: no limit), its
--       bytes, number of texts, fields and values, paths
-- Reply: nil; where there is no room for it, the owner's files and bytes
local file, all, of_purpose, expiring, garbage, stored = unpack(KEYS)
local id, expires_at, max_files, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes, texts = tonumber(ARGV[5]), tonumber(ARGV[6])
if redis.call('EXISTS', file) == 0 then
  local have = redis.call('HMGET', stored, 'files', 'bytes')
  local have_files, have_bytes = tonumber(have[1] or 0), tonumber(have[2] or 0)
  if (max_files > 0 and have_files >= max_files) or (max_bytes > 0 and have_bytes + bytes > max_bytes) then
    return {tostring(have_files), tostring(have_bytes)}
  end
  redis.call('HINCRBY', stored, 'files', 1)
  redis.call('HINCRBY', stored, 'bytes', bytes)
end
redis.call('HSET', file, unpack(ARGV, 7, 6 + texts))
redis.call('ZADD', all, 0, id)
redis.call('ZADD', of_purpose, 0, id)
if expires_at ~= '' then redis.call('ZADD', expiring, expires_at, id) end
for i = 7 + texts, #ARGV do redis.call('ZREM', garbage, ARGV[i]) end
return false
