#!lua flags=allow-oom
-- Hand jobs back at a drain, without charging an attempt. The take ends, so that appends which this worker
-- still has in flight are refused. An entry that it has not begun on keeps its attempts: an earlier worker may have
-- died on it.
-- KEYS  stream; per job: state
-- ARGV  group, consumer, consumer that owns released entries; per job: entry
-- Reply: how many were handed back
local stream, group, consumer, released_to = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local released = 0
for i = 2, #KEYS do
  local state, entry = KEYS[i], ARGV[i + 2]
  if owns(stream, group, consumer, entry) then
    local known = redis.call('HMGET', state, 'status', 'worker')
    if known[1] == 'running' and known[2] == consumer then
      redis.call('HINCRBY', state, 'attempts', -1)
      redis.call('HSET', state, 'status', 'queued')
      redis.call('HDEL', state, 'worker', 'take')
    end
    give_to(released_to, stream, group, {entry})
    released = released + 1
  end
end
return released
