#!lua flags=allow-oom
-- Hand jobs back, at a drain or for one of a higher priority, without charging an attempt. The take ends, so that
-- appends which this worker still has in flight are refused. An entry that it has not begun on keeps its attempts: an
-- earlier worker may have died on it.
-- KEYS  stream; per job: state
-- ARGV  group, consumer, consumer that owns released entries; per job: entry, "" or the id of the take that ends:
--       nothing changes where this worker has taken the job again since
-- Reply: how many were handed back
local stream, group, consumer, released_to = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local released = 0
for i = 2, #KEYS do
  local state, entry, take_id = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
  local known = owns(stream, group, consumer, entry) and redis.call('HMGET', state, 'status', 'worker', 'take')
  if known and (take_id == '' or known[3] == take_id) then
    if known[1] == 'running' and known[2] == consumer then
      redis.call('HINCRBY', state, 'attempts', -1)
      redis.call('HSET', state, 'status', 'queued')
      redis.call('HDEL', state, 'worker', 'take')
    end
    give_to(released_to, stream, group, {entry})
    if take_id ~= '' then
      redis.call('XCLAIM', stream, group, released_to, '0', entry, 'IDLE', text(MADE_ROOM_MS), 'JUSTID')
    end
    released = released + 1
  end
end
return released
