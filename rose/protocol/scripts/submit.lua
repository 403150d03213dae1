-- Enqueue jobs, each of them once. A job id that exists is not enqueued again (a client repeats a call
-- after a lost reply), and neither is an idempotency key.
-- KEYS  load, model, job streams, most urgent first; per job: state, and its idempotency key if it has
--       one
-- ARGV  number of job streams, max jobs, max tokens, idempotency ttl s, now ms; "" means no limit;
--       per job: "<number of its stream> <cost> <prompt tokens> <prompt bytes> <1: has a key>", job;
--       "-" for a figure that is not known
-- Reply: {item number (from 0), outcome, ...} of the items that were not simply enqueued:
--        EXISTS id; TOO_LONG least context; FULL unit depth
local load, model = KEYS[1], KEYS[2]
local streams, max_jobs, max_tokens, idempotency_ttl, now_ms = unpack(ARGV, 1, 5)
streams, max_jobs, max_tokens = tonumber(streams), tonumber(max_jobs), tonumber(max_tokens)

local limits = redis.call('HMGET', model, 'context_tokens', 'max_bytes_per_token')
local context, bytes_per_token = tonumber(limits[1] or ''), tonumber(limits[2] or '')
local depth, queued = 0, 0
if max_jobs then
  for i = 3, streams + 2 do depth = depth + redis.call('XLEN', KEYS[i]) end
end
if max_tokens then queued = tonumber(redis.call('HGET', load, 'tokens') or '0') end

-- Refuse prompts that are certainly too long, as far as one can tell without a tokenizer. The worker
-- decides the rest.
local function too_long(prompt_tokens, prompt_bytes)
  if not context then return nil end
  local least = tonumber(prompt_tokens)
  if not least and bytes_per_token and prompt_bytes ~= '-' then
    least = math.ceil(tonumber(prompt_bytes) / bytes_per_token)
  end
  if least and least >= context then return {'TOO_LONG', tostring(least), tostring(context)} end
end

local function id_of(state)
  return string.match(state, ':state:(.*)$')
end

local function submit(stream, state, idempotency, cost, prompt_tokens, prompt_bytes, job)
  local known = idempotency and redis.call('GET', idempotency)
  if known then return {'EXISTS', known} end
  if redis.call('EXISTS', state) == 1 then return {'EXISTS', id_of(state)} end
  local refused = too_long(prompt_tokens, prompt_bytes)
  if refused then return refused end
  if max_jobs and depth >= max_jobs then return {'FULL', 'jobs', tostring(depth)} end
  if max_tokens and queued + tonumber(cost) > max_tokens then
    return {'FULL', 'tokens', tostring(queued)}
  end

  local entry = redis.call('XADD', stream, '*', 'job', job)
  redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', 0,
    'attempts', 0, 'tokens', 0, 'cost', cost, 'enqueued_ms', now_ms)
  redis.call('HINCRBY', load, 'tokens', cost)
  if idempotency then redis.call('SET', idempotency, id_of(state), 'EX', idempotency_ttl) end
  depth, queued = depth + 1, queued + tonumber(cost)
end

local reply, key = {}, streams + 3
for i = 6, #ARGV, 2 do
  local stream, cost, prompt_tokens, prompt_bytes, has_key =
    string.match(ARGV[i], '^(%d+) (%d+) (%S+) (%S+) (%d)$')
  local state, idempotency = KEYS[key], nil
  key = key + 1
  if has_key == '1' then
    idempotency = KEYS[key]
    key = key + 1
  end
  local outcome = submit(KEYS[tonumber(stream) + 2], state, idempotency, cost, prompt_tokens,
    prompt_bytes, ARGV[i + 1])
  if outcome then
    table.insert(outcome, 1, (i - 6) / 2)
    reply[#reply + 1] = outcome
  end
end
return reply
