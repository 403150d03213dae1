-- Note a job that owes an event at its end. It need not be in the queue yet.
-- KEYS  webhook_jobs        ARGV  id, owner
-- Reply: the entry
local KEPT_MS = 90 * 86400000 -- longer than any job waits; without endpoints nobody looks
local now = text(now_ms())
local entry = now .. ' ' .. ARGV[1] .. ' ' .. ARGV[2]
redis.call('ZADD', KEYS[1], now, entry)
redis.call('PEXPIRE', KEYS[1], KEPT_MS)
return entry
