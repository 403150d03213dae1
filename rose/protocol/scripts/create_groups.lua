#!lua flags=allow-oom
-- Create the consumer group of job streams, at entry 0 so that it sees the jobs that came before it. A key of the
-- partition that another program has written over with another type is deleted before: all of its jobs would wait.
-- A script, because a worker must be able to start when Redis is full: XGROUP CREATE by itself is refused.
-- KEYS  job streams, other keys        ARGV  group, number of job streams; per key a read that fails if it is of another type
-- Reply: the keys that were deleted
local group, streams, deleted, lost = ARGV[1], tonumber(ARGV[2]), {}, {}
for n, key in ipairs(KEYS) do
  local words = {}
  for word in string.gmatch(ARGV[n + 2], '%S+') do words[#words + 1] = word end
  if not ask(words[1], key, unpack(words, 2)) then
    redis.call('DEL', key)
    deleted[#deleted + 1] = key
  end
  if n <= streams and not last_delivered(key, group) then
    if redis.call('EXISTS', key) == 0 then lost[#lost + 1] = key end
    redis.call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
  end
end
-- What waited there is lost to those who asked for it: they see by these times that it was enqueued before.
for _, stream in ipairs(lost) do
  redis.call('HSET', prefix_of(stream) .. 'model', 'begun:' .. stream, string.format('%d', now_ms()))
end
return deleted
