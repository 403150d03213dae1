#!lua flags=allow-oom
-- Elect the worker that reads the queue's gauges for all: the one that the key names. A lease of 0
-- resigns. A key that has no time to live, or a longer one than this script gives, is replaced: somebody
-- else wrote it, or Redis' clock was set back.
-- KEYS  reader        ARGV  consumer, lease ms
-- Reply: 1 if this consumer is elected, else 0
local reader, consumer, lease = KEYS[1], ARGV[1], ARGV[2]
local holder = ask('GET', reader)
if holder == consumer then
  -- PEXPIRE needs no memory, so the gauges go on when Redis has none left.
  redis.call('PEXPIRE', reader, lease)
  return 1
end
local left = holder and redis.call('PTTL', reader) or 0
if lease == '0' or (left > 0 and left <= tonumber(lease)) then return 0 end
redis.call('SET', reader, consumer, 'PX', lease)
return 1
