#!lua flags=allow-oom
-- Enqueue the job of a dead letter under a new id, since an id has only one terminal event. Queue
-- limits do not apply: somebody has asked for this very job.
-- KEYS  dead, stream, state, load; state and stream are those of the new job
-- ARGV  the letter's entry, job (with its new id), old id or "", cost, ms to its deadline or "-"
-- Reply: RETRIED; GONE (it was retried or purged before)
local dead, stream, state, load = unpack(KEYS)
local letter, job, old_id, cost, deadline_in = unpack(ARGV)

if redis.call('XDEL', dead, letter) == 0 then
  -- A repeat after a lost reply has the same new id.
  return redis.call('EXISTS', state) == 1 and 'RETRIED' or 'GONE'
end
local entry, now = redis.call('XADD', stream, '*', 'job', job), now_ms()
redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', 0,
  'attempts', 0, 'tokens', 0, 'cost', cost, 'bytes', bytes_of(job),
  'enqueued_ms', string.format('%d', now), 'retry_of', old_id)
if deadline_in ~= '-' then
  redis.call('HSET', state, 'deadline_ms', string.format('%d', now + deadline_in))
end
add_to(load, 'tokens', tonumber(cost))
add_to(load, 'bytes', bytes_of(job))
return 'RETRIED'
