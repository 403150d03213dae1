#!lua flags=allow-oom
-- How a delivery went.
-- KEYS  webhook_due, webhook_events, webhook_failures, webhook_dead
-- ARGV  id; and unless it was delivered: when the lease ended, JSON of its failures, ms until the next attempt or ""
--       to give it up, the most dead events
-- Reply: 1; 0 if another has it by now
local due, events, failures, dead = unpack(KEYS)
local id, lease, why, pause, most = unpack(ARGV)
if not lease then -- whoever has it by now: it was received
  redis.call('ZREM', due, id)
  redis.call('ZREM', dead, id)
  redis.call('HDEL', events, id)
  redis.call('HDEL', failures, id)
  return 1
end
if tonumber(redis.call('ZSCORE', due, id) or '') ~= tonumber(lease) then return 0 end
redis.call('HSET', failures, id, why)
if pause ~= '' then
  redis.call('ZADD', due, text(now_ms() + pause), id)
  return 1
end
redis.call('ZREM', due, id)
redis.call('ZADD', dead, text(now_ms()), id)
local surplus = redis.call('ZCARD', dead) - most
for _, old in ipairs(surplus > 0 and redis.call('ZRANGE', dead, 0, surplus - 1) or {}) do
  redis.call('ZREM', dead, old)
  redis.call('HDEL', events, old)
  redis.call('HDEL', failures, old)
end
return 1
