-- Enqueue jobs, each of them once. A job id that exists is not enqueued again (a client repeats a call
-- after a lost reply), and neither is an idempotency key whose job exists. The job of a tenant is parked: a
-- fetch claims it when the tenant's turn has come.
-- KEYS  load, model, job streams, most urgent first; per job: state, and its idempotency key if it has
--       one
-- ARGV  number of job streams, max jobs, max tokens, max bytes, "" for the queue's own limit; names of the tenants,
--       with spaces between them; per job:
--       "<number of its stream> <cost> <prompt tokens> <prompt bytes> <tenant> <estimated tokens of the prompt>",
--       and unless it has none of them " <1: has a key> <ms to its deadline> <owner> <adapter> <chain, see
--       common_placement.lua>"; job, record or "";
--       "-" for what is not known
-- Reply: {item number (from 0), outcome, ...} of the items that were not simply enqueued:
--        EXISTS id; TOO_LONG least context; NO_ADAPTER its name, the engine, those that are served;
--        DELETED id: that job was deleted, and its end is not over; FULL unit depth limit; BLOCKED stream; LIMITED tenant limit count maximum ms
local load, model = KEYS[1], KEYS[2]
local streams, prefix, now = tonumber(ARGV[1]), prefix_of(load), nil
local of_tenants = prefix .. 'jobs:tenants'
-- Where no worker has announced limits yet, and the caller gives none.
local MAX_JOBS_UNKNOWN = 100000
-- Longer than any job waits and runs.
local KEY_DAYS = 30

local facts = redis.call('HMGET', model, 'context_tokens', 'max_bytes_per_token', 'max_jobs', 'max_tokens', 'max_bytes',
  'engine', 'adapters', 'ageing_ms', 'placement')
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
for i = 1, 7 do held[i] = held[i] and tonumber(held[i]) or 0 end

-- A job has an entry until it has ended. Where there is none there is nothing to count, whatever a lost worker has
-- left in the counts.
if entries == 0 then
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
  local least = tonumber(prompt_tokens)
  if not least and bytes_per_token and prompt_bytes ~= '-' then
    least = math.ceil(tonumber(prompt_bytes) / bytes_per_token)
  end
  if least and least >= context then return {'TOO_LONG', tostring(least), tostring(context)} end
end

-- Before a worker has come nobody knows which there are.
local function no_adapter(adapter)
  local served = facts[7]
  if served and not string.find(' ' .. served .. ' ', ' ' .. adapter .. ' ', 1, true) then
    return {'NO_ADAPTER', adapter, facts[6] or '', served}
  end
end

local function full(unit, count, most)
  return {'FULL', unit, string.format('%d', count), string.format('%d', most)}
end

-- Whether a job has this state. A hash without a status is what a cancel has left there that came too
-- late: the second result. The third: whether it was deleted. A key of another type is somebody else's, and no job
-- can have it.
local function exists(state)
  if redis.call('EXISTS', state) == 0 then return false end
  local known = ask('HMGET', state, 'status', 'cancel', 'deleted')
  if not known then return true end
  return known[1], known[2], known[3]
end

-- Whether nothing but a deleted job's state and log is left: no worker has or finds it any more.
local function is_left_over(state)
  --uses is_terminal, names_entry
  local known = redis.call('HMGET', state, 'status', 'tombstone', 'stream', 'entry')
  if not is_terminal(known[1]) or known[2] then return false end
  if not known[3] or not known[4] or not names_entry(KEYS[3], known[3], known[4]) then return true end
  local pending = redis.pcall('XPENDING', known[3], 'workers', known[4], known[4], 1)
  return pending.err ~= nil or #pending == 0
end

-- `id`: of the new entry, but that its last number may be a star. Returns it, or what is replied if there can be none.
local function add_entry(stream, id, job, ...)
  local entry = redis.pcall('XADD', stream, id, 'job', job, ...)
  -- Redis' clock was set back.
  if entry.err and string.find(entry.err, 'smaller') then entry = redis.pcall('XADD', stream, '*', 'job', job, ...) end
  if not entry.err then return entry end
  -- Somebody has written an entry with the last possible id.
  if string.find(entry.err, 'exhausted') then return nil, {'BLOCKED', stream} end
  error(entry)
end

-- `share`: of a job that is parked. Its `attempts` and `tokens` are nil as long as they are 0.
local function store(state, idempotency, stream, entry, cost, deadline_ms, size, owner, record, tenant, share)
  local rest, n = share and {'tenant', tenant, 'share', share} or {'attempts', '0', 'tokens', '0'}, 4
  if deadline_ms then rest[n + 1], rest[n + 2], n = 'deadline_ms', deadline_ms, n + 2 end
  if owner ~= '-' then rest[n + 1], rest[n + 2], n = 'owner', owner, n + 2 end
  if tenant and not share then rest[n + 1], rest[n + 2], n = 'tenant', tenant, n + 2 end
  if record ~= '' then rest[n + 1], rest[n + 2], n = 'record', record, n + 2 end
  if idempotency then
    rest[n + 1], rest[n + 2] = 'key', string.match(idempotency, ':idempotency:(.*)$')
    -- It expires with the job's result; this bounds what is left of a job that Redis has lost.
    redis.call('SET', idempotency, id_of(state), 'EX', KEY_DAYS * 86400)
  end
  redis.call('HSET', state, 'status', 'queued', 'stream', stream, 'entry', entry, 'epoch', '0',
    'cost', cost, 'bytes', size, 'enqueued_ms', string.match(entry, '^%d+'), unpack(rest))
end

-- Where jobs have tenants: their accounts, and what parks them.
local accounts, in_a_row, id_at, accept_job, park_job, refuse
-- A single job of a tenant of whom nothing waits, and whom no limits hold, is parked `alone`: all that is written then costs
-- less than the accounts that others need. What is known of the tenant:
local alone, vtime, last, held_tokens, held_bytes, served, jobs, jobs_running, parked, due, is_ready, minute
local shares, ARGUMENTS_OF_ONE = ARGV[5] ~= '' and prefix .. 'shares:', 8
if shares and #ARGV == ARGUMENTS_OF_ONE then
  --uses parse_record
  local name = ARGV[5]
  local records = ask('HMGET', shares .. 'tenants', name)
  vtime, last, held_tokens, held_bytes, served, jobs, jobs_running, parked, due, is_ready, minute =
    parse_record(records and records[1])
  vtime = tonumber(vtime or '')
  if vtime and parked == '0' and due == '-' and is_ready == '0' and minute == '' then
    local limits, clock = ask('HMGET', prefix .. 'tenants:limits', ':passes', name), ask('HMGET', shares .. 'clock', 'vtime')
    local passes, own = limits and limits[1] or '', limits and limits[2]
    alone = limits and clock and passes == '' and not (own and string.find(own, ' %d'))
    if alone then vtime = math.max(vtime, tonumber(clock[1] or '') or 0) end
  end
end
if shares and not alone then
  --uses tenant_accounts, refusal, accept, park, ageing_of
  local names = {}
  accounts, now = tenant_accounts(prefix), now_ms()
  accounts.now, accounts.ageing = now, ageing_of(facts[8])
  for name in string.gmatch(ARGV[5], '%S+') do names[#names + 1] = name end
  accounts.open_all(names)
  -- Jobs of one call have ids in a row, so that a fetch reads them at once.
  in_a_row, id_at = string.format('%d-*', now), #prefix + #'state:' + 1
  accept_job, park_job, refuse = accept, park, refusal
end
-- Sorted sets that somebody has written over, with what belongs there: key, score, member.
local overwritten

local reply, key, before_tokens, before_bytes = {}, streams + 3, tokens, bytes
for i = 6, #ARGV, 3 do
  local level_text, cost_text, prompt_tokens, prompt_bytes, name, prompt, more =
    string.match(ARGV[i], '^(%d+) (%d+) (%S+) (%S+) (%S+) (%d+)(.*)$')
  local has_key, deadline_in, owner, adapter, chain = '0', '-', '-', '-', '-'
  if more ~= '' then has_key, deadline_in, owner, adapter, chain = string.match(more, '^ (%d) (%S+) (%S+) (%S+) (%S+)$') end
  local state, idempotency, job, record = KEYS[key], nil, ARGV[i + 1], ARGV[i + 2]
  key = key + 1
  if has_key == '1' then
    idempotency = KEYS[key]
    key = key + 1
  end
  local level, cost, size = level_text + 0, cost_text + 0, bytes_of(job) + #record
  local stream, entry_id, tenant, entry = KEYS[level + 2], '*', nil, nil
  if name == '-' then
    name = nil
  elseif alone then
    stream = of_tenants
  else
    tenant, stream, entry_id = accounts.open(name), of_tenants, in_a_row
  end

  local earlier = idempotency and ask('GET', idempotency)
  local known, cancelled, deleted = exists(state)
  if known and deleted and is_left_over(state) then known = false end
  local outcome
  if earlier and exists(string.match(state, '^.*:state:') .. earlier) then
    outcome = {'EXISTS', earlier}
  elseif known then
    outcome = {deleted and 'DELETED' or 'EXISTS', id_of(state)}
  else
    outcome = context and too_long(prompt_tokens, prompt_bytes)
      or adapter ~= '-' and no_adapter(adapter)
      or max_jobs and depth + 1 > max_jobs and full('jobs', depth, max_jobs)
      or max_tokens and tokens + cost > max_tokens and full('tokens', tokens, max_tokens)
      or max_bytes and bytes + surplus + size > max_bytes and full('bytes', bytes + surplus, max_bytes)
      or tenant and tenant.limited and refuse(tenant, cost, size, now)
  end
  if not outcome and chain ~= '-' and facts[9] == '1' then
    entry, outcome = add_entry(stream, entry_id, job, 'chain', chain)
  elseif not outcome then
    entry, outcome = add_entry(stream, entry_id, job)
  end

  if entry then
    local deadline_ms, size_text = nil, string.format('%d', size)
    if deadline_in ~= '-' or alone then now = now or now_ms() end
    if deadline_in ~= '-' then deadline_ms = string.format('%d', now + deadline_in) end
    if tenant then
      accept_job(tenant, cost, size)
      park_job(accounts, tenant, string.sub(state, id_at), level, now, deadline_ms)
    elseif alone then
      --uses next_due, ageing_of, format_record, bucket_of, PARKED
      local job_id, bucket = id_of(state), bucket_of(jobs + 1)
      due, last = next_due(last, level, now, ageing_of(facts[8]))
      due = text(due)
      redis.call('HSET', shares .. 'tenants', name, format_record(vtime, text(last), held_tokens + cost, held_bytes + size,
        served, jobs + 1, jobs_running, 1, due, '1', ''))
      local function place(order, score, member)
        if ask('ZADD', shares .. order, score, member) then return end
        overwritten = overwritten or {}
        overwritten[#overwritten + 1] = {shares .. order, score, member}
      end
      place('parked:' .. name, due, job_id)
      place('heads', due, name)
      place('ready', text(math.floor(vtime * 1024)), name)
      if bucket ~= bucket_of(jobs + 0) then place('jobs', text(bucket), name) end
      if deadline_ms then place('deadlines', deadline_ms, job_id) end
      add_to(load, PARKED[level], 1)
    end
    if cancelled or deleted then redis.call('DEL', state) end
    if deleted then redis.call('DEL', (string.gsub(state, ':state:', ':tokens:', 1))) end
    store(state, idempotency, stream, entry, cost_text, deadline_ms, size_text, owner, record, name,
      stream == of_tenants and prompt .. ' ' .. level_text .. ' ' .. size_text)
    depth, tokens, bytes = depth + 1, tokens + cost, bytes + size
  else
    table.insert(outcome, 1, (i - 6) / 3)
    reply[#reply + 1] = outcome
  end
end
add_to(load, 'tokens', tokens - before_tokens)
add_to(load, 'bytes', bytes - before_bytes)
if overwritten then
  --uses tenant_accounts
  accounts = tenant_accounts(prefix)
  for _, place in ipairs(overwritten) do accounts.insist('ZADD', unpack(place)) end
end
if accounts then accounts.close(load) end
return reply
