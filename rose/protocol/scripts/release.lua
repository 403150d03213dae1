-- Hand jobs back at drain: at once, and without charging an attempt. The epoch is raised, so
-- that nothing this worker still has in flight can be appended. An entry that it owns but has not
-- begun on is handed back as it is: an attempt that another worker owes stays charged.
-- KEYS  stream; state ...      ARGV  group, consumer, consumer of what is handed back; per state: entry
-- Reply: how many were handed back
local stream, group, consumer, nobody = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local released = 0
for i = 2, #KEYS do
  local state, entry = KEYS[i], ARGV[i + 2]
  if owns(stream, group, consumer, entry) then
    local known = redis.call('HMGET', state, 'status', 'worker')
    if known[1] == 'running' and known[2] == consumer then
      redis.call('HINCRBY', state, 'epoch', 1)
      redis.call('HINCRBY', state, 'attempts', -1)
      redis.call('HSET', state, 'status', 'queued')
      redis.call('HDEL', state, 'worker')
    end
    -- A day idle: the next reclaim of any worker takes it, whatever its lease.
    redis.call('XCLAIM', stream, group, nobody, 0, entry, 'IDLE', 86400000, 'JUSTID')
    released = released + 1
  end
end
return released
