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
-- A dead letter holds the job alone. What else is known of it expires with its old state.
local known = old_id ~= '' and ask('HMGET', (string.gsub(state, ':state:.*$', ':state:')) .. old_id, 'owner', 'record') or {}
local size = bytes_of(job) + #(known[2] or '')
redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', 0,
  'attempts', 0, 'tokens', 0, 'cost', cost, 'bytes', size,
  'enqueued_ms', string.format('%d', now), 'retry_of', old_id)
if known[1] then redis.call('HSET', state, 'owner', known[1]) end
if known[2] then redis.call('HSET', state, 'record', known[2]) end
if deadline_in ~= '-' then
  redis.call('HSET', state, 'deadline_ms', string.format('%d', now + deadline_in))
end
add_to(load, 'tokens', tonumber(cost))
add_to(load, 'bytes', size)
return 'RETRIED'
