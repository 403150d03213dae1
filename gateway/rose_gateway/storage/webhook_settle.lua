#!lua flags=allow-oom
-- What owed an event has ended: file the event for each endpoint that is still registered. A repeat files nothing.
-- KEYS  webhook_jobs or webhook_batches, webhooks; of each endpoint: webhook_due, webhook_events
-- ARGV  entry, id of the event, its body, ids of the endpoints
-- Reply: 1; 0 if it was settled before
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
local now = text(now_ms())
for i = 4, #ARGV do
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then
    local due, events = KEYS[2 * i - 5], KEYS[2 * i - 4]
    redis.call('HSET', events, ARGV[2], ARGV[3])
    redis.call('ZADD', due, now, ARGV[2])
  end
end
return 1
