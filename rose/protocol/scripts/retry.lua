#!lua flags=allow-oom
-- Enqueue the job of a dead letter under a new id, since an id has only one terminal event. Queue
-- limits do not apply: somebody has asked for this very job.
-- KEYS  dead, stream, state, load; state and stream are those of the new job
-- ARGV  the letter's entry, job (with its new id), old id or "", cost, now ms
-- Reply: RETRIED; GONE (it was retried or purged before)
local dead, stream, state, load = unpack(KEYS)
local letter, job, old_id, cost, now_ms = unpack(ARGV)

if redis.call('XDEL', dead, letter) == 0 then
  -- A repeat after a lost reply has the same new id.
  return redis.call('EXISTS', state) == 1 and 'RETRIED' or 'GONE'
end
local entry = redis.call('XADD', stream, '*', 'job', job)
redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', 0,
  'attempts', 0, 'tokens', 0, 'cost', cost, 'enqueued_ms', now_ms, 'retry_of', old_id)
redis.call('HINCRBY', load, 'tokens', cost)
return 'RETRIED'
