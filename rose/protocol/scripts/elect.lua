-- Elect the one worker that reads the queue for the gauges of all: who holds the key. A lease of 0
-- resigns. What holds no lease here was not written by this script, and is written over.
-- KEYS  reader        ARGV  consumer, lease ms
-- Reply: 1 for the elected, else 0
local reader, consumer, lease = KEYS[1], ARGV[1], ARGV[2]
local holder = ask('GET', reader)
if holder == consumer then
  -- Asks for no memory, so that the gauges outlive a Redis that has none left.
  redis.call('PEXPIRE', reader, lease)
  return 1
end
if lease == '0' or (holder and redis.call('PTTL', reader) > 0) then return 0 end
redis.call('SET', reader, consumer, 'PX', lease)
return 1
