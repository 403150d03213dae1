#!lua flags=allow-oom
-- Create the consumer group of job streams, at entry 0 so that it sees the jobs that came before it.
-- A script, because a worker must be able to start when Redis is full: XGROUP CREATE by itself is refused.
-- KEYS  job streams        ARGV  group
for _, stream in ipairs(KEYS) do
  if not last_delivered(stream, ARGV[1]) then
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
  end
end
return 'OK'
