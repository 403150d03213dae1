-- Keep a new batch, where runners find it. A repeat changes nothing.
-- KEYS  state, unfinished, the owner's batches (sorted set of equal scores: ids, which sort by age), the owner's
--       unfinished ones (set), webhook_batches where it owes an event
-- ARGV  id, ttl ms, smallest id that may still be kept, most unfinished ones of the owner (0: no limit), owner, field,
--       value, ...
-- Reply: 1 if it is kept; nil if the owner has as many as that
local KEPT_MS = 90 * 86400000 -- longer than any batch runs; without endpoints nobody looks
local state, unfinished, index, own, owing = unpack(KEYS)
local most = tonumber(ARGV[4])
if redis.call('EXISTS', state) == 1 then return 1 end
if most > 0 then
  if redis.call('SCARD', own) >= most then -- those that have ended are still in the set
    for _, id in ipairs(redis.call('SMEMBERS', own)) do
      if not redis.call('ZSCORE', unfinished, id) then redis.call('SREM', own, id) end
    end
    if redis.call('SCARD', own) >= most then return nil end
  end
  redis.call('SADD', own, ARGV[1])
  redis.call('PEXPIRE', own, ARGV[2])
end
redis.call('HSET', state, unpack(ARGV, 6))
redis.call('PEXPIRE', state, ARGV[2])
redis.call('ZREMRANGEBYLEX', index, '-', '(' .. ARGV[3])
redis.call('ZADD', index, 0, ARGV[1])
redis.call('PEXPIRE', index, ARGV[2])
local now = text(now_ms())
redis.call('ZADD', unfinished, now, ARGV[1])
if owing then
  redis.call('ZADD', owing, now, now .. ' ' .. ARGV[1] .. ' ' .. ARGV[5])
  redis.call('PEXPIRE', owing, KEPT_MS)
end
return 1
