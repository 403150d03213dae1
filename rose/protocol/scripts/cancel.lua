#!lua flags=allow-oom
-- Stop a job.
-- KEYS  state, tokens, load
-- ARGV  what to publish on `control:DATABASE`, event (cancelled at token 0), ttl s
-- Reply: UNKNOWN, ENDED, CANCELLED (it has ended), REQUESTED (its worker will end it)
local state, tokens, load = unpack(KEYS)
local message, event, ttl_s = unpack(ARGV)

local status = redis.call('HMGET', state, 'status')[1]
if not status then return 'UNKNOWN' end
if is_terminal(status) then return 'ENDED' end
return told(stop_job(state, tokens, load, message, event, ttl_s) and 'CANCELLED' or 'REQUESTED')
