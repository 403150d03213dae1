#!lua flags=allow-oom
-- Delete consumers that hold nothing and have been silent for long: killed workers leave theirs behind.
-- One script looks and deletes, since deleting a consumer that has just read an entry would lose it.
-- KEYS  workers, the normal job stream, on which workers show that they live, the others, stream of tenants' jobs
-- ARGV  group, idle ms
-- Reply: how many were deleted
local workers, forgotten = KEYS[1], 0
for i = 2, #KEYS do
  local stream = KEYS[i]
  -- The last one is that of the tenants' jobs, which has a group once a fetch has seen one of them.
  local there = i < #KEYS or last_delivered(stream, ARGV[1])
  for _, info in ipairs(there and redis.call('XINFO', 'CONSUMERS', stream, ARGV[1]) or {}) do
    local consumer = by_name(info)
    if consumer.pending == 0 and consumer.idle >= tonumber(ARGV[2]) then
      redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], consumer.name)
      if i == 2 then
        redis.call('HDEL', workers, consumer.name)
        ask('HDEL', prefix_of(workers) .. 'placement:workers', consumer.name)
      end
      forgotten = forgotten + 1
    end
  end
end
return forgotten
