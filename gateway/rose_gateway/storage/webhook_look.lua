#!lua flags=allow-oom
-- What owes an event and is to be looked at. Until it has ended it is looked at again after a tenth of its age, so
-- an event is that late at the most. No gateway holds an entry: one that dies delays it, and two that look settle once.
-- KEYS  webhook_jobs and webhook_batches        ARGV  the most entries of each, the longest pause in ms
-- Reply: the time in ms; entries of each key
local MIN_PAUSE_MS = 1000
local most, longest = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local reply = {now}
for i, key in ipairs(KEYS) do
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)
  if #due == 0 then -- From before Redis' clock was set back.
    due = redis.call('ZRANGEBYSCORE', key, now + 2 * longest, '+inf', 'LIMIT', 0, most)
  end
  for _, entry in ipairs(due) do
    local age = now - (tonumber(string.match(entry, '^(%d+) ')) or 0)
    redis.call('ZADD', key, text(now + math.floor(math.max(MIN_PAUSE_MS, math.min(age / 10, longest)))), entry)
  end
  reply[i + 1] = due
end
return reply
