#!lua flags=allow-oom
-- Deliver dead events once more, as if they had never failed.
-- KEYS  webhook_due, webhook_failures, webhook_dead        ARGV  ids
-- Reply: how many of them were dead
local due, failures, dead = unpack(KEYS)
local now, resent = text(now_ms()), 0
for _, id in ipairs(ARGV) do
  if redis.call('ZREM', dead, id) == 1 then
    redis.call('HDEL', failures, id)
    redis.call('ZADD', due, now, id)
    resent = resent + 1
  end
end
return resent
