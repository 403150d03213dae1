#!lua flags=allow-oom
-- Leave the consumer groups for good. What this consumer still owns, such as the entries of a fetch whose
-- reply was lost, goes to `released`. One script, because deleting a consumer that has just read an entry
-- would lose it.
-- KEYS  workers, job streams, stream of tenants' jobs
-- ARGV  group, consumer, consumer that owns released entries, "placing" if it has said that it places jobs
-- Reply: how many entries it still owned
local group, consumer, released_to = ARGV[1], ARGV[2], ARGV[3]
local MAX_ENTRIES = 1000

local released = 0
local function leave(stream)
  repeat
    local pending = redis.call('XPENDING', stream, group, '-', '+', MAX_ENTRIES, consumer)
    give_to(released_to, stream, group, ids_of(pending))
    released = released + #pending
  until #pending < MAX_ENTRIES
  redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
end

for i = 2, #KEYS do
  -- The last one is that of the tenants' jobs, which has a group once a fetch has seen one of them.
  if i < #KEYS or last_delivered(KEYS[i], group) then leave(KEYS[i]) end
end
redis.call('HDEL', KEYS[1], consumer)
if ARGV[4] == 'placing' then ask('HDEL', prefix_of(KEYS[1]) .. 'placement:workers', consumer) end
return released
