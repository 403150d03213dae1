-- Enqueue jobs, each of them once. A job id that exists is not enqueued again (a client repeats a call
-- after a lost reply), and neither is an idempotency key whose job exists. The job of a tenant is parked: a
-- fetch claims it when the tenant's turn has come.
-- KEYS  load, model, job streams, most urgent first; per job: state, and its idempotency key if it has
--       one
-- ARGV  number of job streams, max jobs, max tokens, max bytes, "" for the queue's own limit; names of the tenants,
--       with spaces between them; per job:
--       "<number of its stream> <cost> <prompt tokens> <prompt bytes> <1: has a key> <ms to its
--       deadline> <owner> <tenant> <estimated tokens of the prompt> <adapter>", job, record or ""; "-" for
--       what is not known
-- Reply: {item number (from 0), outcome, ...} of the items that were not simply enqueued:
--        EXISTS id; TOO_LONG least context; NO_ADAPTER its name, the engine, those that are served;
--        FULL unit depth limit; BLOCKED stream; LIMITED tenant limit count maximum ms
local load, model = KEYS[1], KEYS[2]
local streams, of_tenants = tonumber(ARGV[1]), prefix_of(load) .. 'jobs:tenants'
-- Where workers have announced no limits (none has come yet, or they are of an older version) and the
-- caller gives none.
local MAX_JOBS_UNKNOWN = 100000
-- Longer than any job waits and runs.
local KEY_DAYS = 30

local facts = redis.call('HMGET', model, 'context_tokens', 'max_bytes_per_token', 'max_jobs', 'max_tokens', 'max_bytes',
  'engine', 'adapters', 'ageing_ms')
local context, bytes_per_token = tonumber(facts[1] or ''), tonumber(facts[2] or '')

-- The queue's limit, which its workers have announced, or a stricter one of the caller; nil for none.
local function limit(own, announced)
  own, announced = tonumber(own), tonumber(announced or '')
  return own and announced and math.min(own, announced) or own or announced
end
local max_jobs = limit(ARGV[2], facts[3] or ARGV[2] == '' and MAX_JOBS_UNKNOWN)
local max_tokens, max_bytes = limit(ARGV[3], facts[4] or ''), limit(ARGV[4], facts[5] or '')

local entries = 0
for i = 3, streams + 2 do entries = entries + redis.call('XLEN', KEYS[i]) end
local held = redis.call('HMGET', load, 'tokens', 'bytes', 'cancelled', 'cancelled_bytes', 'parked_high', 'parked_normal', 'parked_low')
-- Where a tenant's job was ever parked.
if held[5] or held[6] or held[7] then entries = entries + (ask('XLEN', of_tenants) or 0) end
-- Those that the version before has parked have no entry.
local parked = 0
for i = 5, entries == 0 and 7 or 0 do parked = parked + math.max(0, tonumber(held[i] or '0') or 0) end
for i = 1, 4 do held[i] = tonumber(held[i] or '0') or 0 end

-- A job has an entry until it has ended. Without one there is nothing to count, whatever a lost worker
-- or an older one has left in the counts.
if entries == 0 and parked == 0 then
  for i, field in ipairs({'tokens', 'bytes', 'cancelled', 'cancelled_bytes'}) do add_to(load, field, -held[i]) end
  held = {0, 0, 0, 0}
end

-- Jobs that were cancelled while they waited do not count, though their entries are still there. But
-- no more of them than the limit itself: else who submits and cancels in turn fills Redis.
local depth = math.max(0, entries - math.min(held[3], max_jobs or held[3]))
local surplus = math.max(0, held[4] - (max_bytes or held[4]))
local tokens, bytes = held[1], held[2]

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

-- Workers of a version without adapters have announced none, and not that there are none.
local function no_adapter(adapter)
  local served = facts[7]
  if adapter == '-' or not served then return nil end
  if not string.find(' ' .. served .. ' ', ' ' .. adapter .. ' ', 1, true) then
    return {'NO_ADAPTER', adapter, facts[6] or '', served}
  end
end

local function full(unit, count, more, most)
  if most and count + more > most then
    return {'FULL', unit, string.format('%d', count), string.format('%d', most)}
  end
end

-- Whether a job has this state. A hash without a status is what a cancel has left there that came too
-- late: the second result. A key of another type is somebody else's, and no job can have it.
local function exists(state)
  if redis.call('EXISTS', state) == 0 then return false end
  local known = ask('HMGET', state, 'status', 'cancel')
  return not known or known[1], known and known[2]
end

-- What the jobs of tenants need, as soon as there is one: its book, whether they are parked, and functions.
local tenants
local MAX_UNPARKED = 100

local function open_tenants()
  --uses tenant_book, parks_tenants, refusal, accept, park
  local prefix, now = prefix_of(load), now_ms()
  local book, names = tenant_book(prefix), {}
  book.now, book.ageing = now, facts[8] or ''
  local parks = parks_tenants(prefix, KEYS[4])
  if not parks then
    --uses unpark
    unpark(book, MAX_UNPARKED, {unpack(KEYS, 3, streams + 2)})
  end
  for name in string.gmatch(ARGV[5], '%S+') do names[#names + 1] = name end
  book.open_all(names)
  tenants = {book = book, parks = parks, now = now, in_a_row = string.format('%d-*', now), id_at = #prefix + #'state:' + 1,
    refusal = refusal, accept = accept, park = park}
end

local function append_to(words, field, value)
  words[#words + 1], words[#words + 2] = field, value
end

-- `share`: of a job that is parked. Its `attempts` and `tokens` are nil as long as they are 0.
local function store(state, idempotency, stream, entry, cost, deadline_ms, size, owner, record, tenant, share)
  local rest = share and {'tenant', tenant, 'share', share} or {'attempts', '0', 'tokens', '0'}
  if deadline_ms then append_to(rest, 'deadline_ms', deadline_ms) end
  if owner ~= '-' then append_to(rest, 'owner', owner) end
  if tenant and not share then append_to(rest, 'tenant', tenant) end
  if record ~= '' then append_to(rest, 'record', record) end
  if idempotency then
    append_to(rest, 'key', string.match(idempotency, ':idempotency:(.*)$'))
    -- It expires with the job's result; this is for a worker of an older version, which leaves it.
    redis.call('SET', idempotency, id_of(state), 'EX', KEY_DAYS * 86400)
  end
  redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', '0',
    'cost', cost, 'bytes', size, 'enqueued_ms', string.match(entry, '^%d+'), unpack(rest))
end

local function submit(level_text, state, idempotency, cost, prompt_tokens, prompt_bytes, deadline_in, owner, name, prompt,
    adapter, job, record)
  local earlier = idempotency and ask('GET', idempotency)
  if earlier and exists(string.match(state, '^.*:state:') .. earlier) then return {'EXISTS', earlier} end
  local known, cancelled = exists(state)
  if known then return {'EXISTS', id_of(state)} end
  local level = tonumber(level_text)
  local size, stream, tenant = bytes_of(job) + #record, KEYS[level + 2], nil
  if name == '-' then
    name = nil
  else
    if not tenants then open_tenants() end
    tenant = tenants.parks and tenants.book.open(name)
    if tenant then stream = of_tenants end
  end
  local refused = too_long(prompt_tokens, prompt_bytes) or no_adapter(adapter) or full('jobs', depth, 1, max_jobs)
    or full('tokens', tokens, cost, max_tokens) or full('bytes', bytes + surplus, size, max_bytes)
    or tenant and tenant.limited and tenants.refusal(tenant, tonumber(cost), size, tenants.now)
  if refused then return refused end

  -- Tenants' jobs of one call have ids in a row, so that a fetch reads them at once. Not where Redis' clock was set
  -- back.
  local entry = redis.pcall('XADD', stream, tenant and tenants.in_a_row or '*', 'job', job)
  if entry.err and string.find(entry.err, 'smaller') then entry = redis.pcall('XADD', stream, '*', 'job', job) end
  if entry.err then
    -- Somebody has written an entry with the last possible id.
    if string.find(entry.err, 'exhausted') then return {'BLOCKED', stream} end
    error(entry)
  end
  local deadline_ms = deadline_in ~= '-' and string.format('%d', now_ms() + deadline_in)
  if tenant then
    tenants.accept(tenant, cost, size)
    tenants.park(tenants.book, tenant, string.sub(state, tenants.id_at), level, tenants.now, deadline_ms)
  end
  if cancelled then redis.call('DEL', state) end
  local size_text = string.format('%d', size)
  store(state, idempotency, stream, entry, cost, deadline_ms, size_text, owner, record, name,
    tenant and prompt .. ' ' .. level_text .. ' ' .. size_text)
  depth, tokens, bytes = depth + 1, tokens + cost, bytes + size
end

local reply, key, before_tokens, before_bytes = {}, streams + 3, tokens, bytes
for i = 6, #ARGV, 3 do
  local level, cost, prompt_tokens, prompt_bytes, has_key, deadline_in, owner, name, prompt, adapter =
    string.match(ARGV[i], '^(%d+) (%d+) (%S+) (%S+) (%d) (%S+) (%S+) (%S+) (%d+) (%S+)$')
  local state, idempotency = KEYS[key], nil
  key = key + 1
  if has_key == '1' then
    idempotency = KEYS[key]
    key = key + 1
  end
  local outcome = submit(level, state, idempotency, cost, prompt_tokens,
    prompt_bytes, deadline_in, owner, name, prompt, adapter, ARGV[i + 1], ARGV[i + 2])
  if outcome then
    table.insert(outcome, 1, (i - 6) / 3)
    reply[#reply + 1] = outcome
  end
end
add_to(load, 'tokens', tokens - before_tokens)
add_to(load, 'bytes', bytes - before_bytes)
if tenants then tenants.book.close(load) end
return reply
