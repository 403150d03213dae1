#!lua flags=allow-oom
-- Delete consumers that hold nothing and have been silent for long: killed workers leave theirs behind.
-- One script looks and deletes, since deleting a consumer that has just read an entry would lose it.
-- KEYS  job streams        ARGV  group, idle ms
-- Reply: how many were deleted
local forgotten = 0
for _, stream in ipairs(KEYS) do
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, ARGV[1])) do
    local consumer = by_name(info)
    if consumer.pending == 0 and consumer.idle >= tonumber(ARGV[2]) then
      redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], consumer.name)
      forgotten = forgotten + 1
    end
  end
end
return forgotten
