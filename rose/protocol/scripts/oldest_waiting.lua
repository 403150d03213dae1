-- Find the oldest unread entry of each stream. Its id is the time when it was enqueued. The entry itself,
-- which holds a prompt, stays in Redis.
-- KEYS  job streams        ARGV  group
-- Reply: for each stream an entry id, or "" if nothing waits
local oldest = {}
for level, stream in ipairs(KEYS) do
  local last = last_delivered(stream, ARGV[1])
  local entry = last and entry_after(stream, last)
  oldest[level] = entry and entry[1] or ''
end
return oldest
