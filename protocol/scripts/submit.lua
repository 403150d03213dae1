-- Enqueue a job once. Idempotent by job id (a client's retry after a lost reply) and, where the
-- caller gives one, by idempotency key.
-- KEYS  stream, state, load, model, idempotency (used where its ttl is given), every job stream ...
-- ARGV  job id, job, cost, max jobs, max tokens, idempotency ttl s, prompt tokens, prompt bytes,
--       now ms; "" where a limit or a figure is not given
local stream, state, load, model, idempotency = unpack(KEYS, 1, 5)
local job_id, job, cost, max_jobs, max_tokens, idempotency_ttl, prompt_tokens, prompt_bytes, now_ms =
  unpack(ARGV)

if idempotency_ttl ~= '' then
  local known = redis.call('GET', idempotency)
  if known then return {'EXISTS', known} end
end
if redis.call('EXISTS', state) == 1 then return {'EXISTS', job_id} end

-- Refuse here what no worker of this queue could run, as far as that is certain without a
-- tokenizer; the worker decides the rest.
local limits = redis.call('HMGET', model, 'context_tokens', 'max_bytes_per_token')
local context, bytes_per_token = tonumber(limits[1] or ''), tonumber(limits[2] or '')
if context then
  local least = tonumber(prompt_tokens)
  if not least and bytes_per_token and prompt_bytes ~= '' then
    least = math.ceil(tonumber(prompt_bytes) / bytes_per_token)
  end
  if least and least >= context then return {'TOO_LONG', tostring(least), tostring(context)} end
end

if max_jobs ~= '' then
  local depth = 0
  for i = 6, #KEYS do depth = depth + redis.call('XLEN', KEYS[i]) end
  if depth >= tonumber(max_jobs) then return {'FULL', 'jobs', tostring(depth)} end
end
if max_tokens ~= '' then
  local queued = tonumber(redis.call('HGET', load, 'tokens') or '0')
  if queued + tonumber(cost) > tonumber(max_tokens) then return {'FULL', 'tokens', tostring(queued)} end
end

local entry = redis.call('XADD', stream, '*', 'job', job)
redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', 0,
  'attempts', 0, 'tokens', 0, 'cost', cost, 'enqueued_ms', now_ms)
redis.call('HINCRBY', load, 'tokens', cost)
if idempotency_ttl ~= '' then redis.call('SET', idempotency, job_id, 'EX', idempotency_ttl) end
return {'QUEUED', job_id}
