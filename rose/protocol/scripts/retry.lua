#!lua flags=allow-oom
-- Enqueue the job of a dead letter under a new id, since an id has only one terminal event. Queue
-- limits do not apply, nor those of its tenant: somebody has asked for this very job. A tenant's job waits with
-- the tenant's others again.
-- KEYS  dead, stream, state, load; state and stream are those of the new job
-- ARGV  the letter's entry, job (with its new id), old id or "", cost, ms to its deadline or "-", tenant or "",
--       level of its priority, estimated tokens of its prompt
-- Reply: RETRIED; GONE (it was retried or purged before)
local dead, stream, state, load = unpack(KEYS)
local letter, job, old_id, cost, deadline_in, tenant, level, prompt = unpack(ARGV)

if redis.call('XDEL', dead, letter) == 0 then
  -- A repeat after a lost reply has the same new id.
  return redis.call('EXISTS', state) == 1 and 'RETRIED' or 'GONE'
end
local now, parks = now_ms(), tenant ~= ''
if parks then stream = prefix_of(load) .. 'jobs:tenants' end
local entry = redis.call('XADD', stream, '*', 'job', job)
-- A dead letter holds the job alone. What else is known of it expires with its old state.
local known = old_id ~= '' and ask('HMGET', (string.gsub(state, ':state:.*$', ':state:')) .. old_id, 'owner', 'record') or {}
local size = bytes_of(job) + #(known[2] or '')
redis.call('HSET', state, 'status', 'queued', 'epoch', 0,
  'attempts', 0, 'tokens', 0, 'cost', cost, 'bytes', size, 'stream', stream, 'entry', entry,
  'enqueued_ms', string.format('%d', now), 'retry_of', old_id)
if known[1] then redis.call('HSET', state, 'owner', known[1]) end
if known[2] then redis.call('HSET', state, 'record', known[2]) end
local deadline_ms = deadline_in ~= '-' and string.format('%d', now + deadline_in)
if deadline_ms then redis.call('HSET', state, 'deadline_ms', deadline_ms) end
add_to(load, 'tokens', tonumber(cost))
add_to(load, 'bytes', size)
if not parks then return 'RETRIED' end
redis.call('HSET', state, 'tenant', tenant, 'share', string.format('%d %d %d', prompt, level, size))
local accounts = tenant_accounts(prefix_of(load))
local one = accounts.open(tenant)
accept(one, tonumber(cost), size)
park(accounts, one, id_of(state), tonumber(level), now, deadline_ms)
accounts.close(load)
return 'RETRIED'
