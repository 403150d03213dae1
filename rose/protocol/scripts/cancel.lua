#!lua flags=allow-oom
-- Stop a job. A job that no worker has begun on ends at once. Its entry stays until the next take
-- acknowledges it, since XDEL of an undelivered entry would break the group's lag.
-- KEYS  state, tokens, load, control
-- ARGV  job id, event (cancelled at token 0), now ms, ttl s
-- Reply: UNKNOWN, ENDED, CANCELLED (it has ended), REQUESTED (its worker will end it)
local state, tokens, load, control = unpack(KEYS)
local job_id, event, now_ms, ttl_s = unpack(ARGV)

local known = redis.call('HMGET', state, 'status', 'tokens')
if not known[1] then return 'UNKNOWN' end
if is_terminal(known[1]) then return 'ENDED' end
redis.call('HSET', state, 'cancel', '1')
if known[1] == 'queued' and known[2] == '0' then
  end_job(state, tokens, load, 'cancelled', event, now_ms, ttl_s)
  -- Keep the state until the entry is gone: without it a take would begin the job again.
  redis.call('PERSIST', state)
  return 'CANCELLED'
end
redis.call(PUBLISH, control, job_id)
return 'REQUESTED'
