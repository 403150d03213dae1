-- Find the oldest unread entry of each stream. Its id is the time when it was enqueued. The entry itself,
-- which holds a prompt, stays in Redis.
-- Of the parked jobs of tenants it is the one that is due first, those that pass others left aside: an older
-- one of a lower priority may wait.
-- KEYS  load, job streams        ARGV  group
-- Reply: for each stream an entry id, or "" if nothing waits; then that time for parked jobs, as an id
local oldest, prefix = {}, prefix_of(KEYS[1])
for level, stream in ipairs({unpack(KEYS, 2)}) do
  local last = last_delivered(stream, ARGV[1])
  local entry = last and entry_after(stream, last)
  oldest[level] = entry and entry[1] or ''
end
local tenant = (ask('ZRANGE', prefix .. 'shares:heads', 0, 0) or {})[1]
local job_id = tenant and longest_waiting(prefix .. 'shares:parked:' .. tenant)
local enqueued = job_id and redis.call('HMGET', prefix .. 'state:' .. job_id, 'enqueued_ms')[1]
oldest[#oldest + 1] = enqueued and enqueued .. '-0' or ''
return oldest
