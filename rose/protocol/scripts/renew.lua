#!lua flags=allow-oom
-- Renew the leases of entries that this consumer still owns: XCLAIM to oneself resets the idle time.
-- KEYS  stream        ARGV  group, consumer, entry ...
-- Reply: the entries that it does not own any more
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local lost = {}
for i = 3, #ARGV do
  if owns(stream, group, consumer, ARGV[i]) then
    redis.call('XCLAIM', stream, group, consumer, 0, ARGV[i], 'JUSTID')
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
