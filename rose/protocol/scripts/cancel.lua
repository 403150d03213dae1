-- Ask for a job to stop. One that no worker has touched ends here and now; its entry stays for
-- the next take to acknowledge (XDEL of an undelivered entry would break the group's lag).
-- KEYS  state, tokens, load, control
-- ARGV  job id, event (cancelled at token 0), now ms, ttl s
-- Reply: UNKNOWN, ENDED, CANCELLED (done), REQUESTED (its worker will)
local state, tokens, load, control = unpack(KEYS)
local job_id, event, now_ms, ttl_s = unpack(ARGV)

local known = redis.call('HMGET', state, 'status', 'tokens')
if not known[1] then return 'UNKNOWN' end
if is_terminal(known[1]) then return 'ENDED' end
redis.call('HSET', state, 'cancel', '1')
if known[1] == 'queued' and known[2] == '0' then
  end_job(state, tokens, load, 'cancelled', event, now_ms, ttl_s)
  -- Kept until its entry is gone: without the state a take would begin the job anew.
  redis.call('PERSIST', state)
  return 'CANCELLED'
end
redis.call(PUBLISH, control, job_id)
return 'REQUESTED'
