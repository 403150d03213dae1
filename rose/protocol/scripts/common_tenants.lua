-- Tenants: what each of them has. Behind common.lua.
-- What a call changes is gathered, and `close` writes it: by one command for all tenants, not one for each.
-- Redis makes every function of a script anew at every call, and a table that grows is made anew, too: of a call for a
-- single job most of the time would go there. So they have those functions alone that every call needs, and tables
-- name from the beginning what they will hold.
--
-- A job of a tenant stands in the stream jobs:tenants from its submit to its end. None of its entries is ever read
-- as new: it is parked until a fetch, or the worker that listens, claims it for itself. From then on it is pending
-- like any other's.
--
-- Keys, behind the prefix of a partition ("rose:{Q:P}:"):
--   tenants:limits       hash: by name "<weight> <running> <jobs> <bytes> <tokens> <requests a minute>
--                        <tokens a minute>", "-" for no limit; by ":passes", which no tenant is called, the
--                        numbers of the priorities that pass between tenants
--   shares:tenants       hash: by name the record of a tenant, see `parse_record`
--   shares:parked:NAME   sorted set: ids of a tenant's parked jobs, by when they are due: the time of enqueueing
--                        and `ageing` for each level below the first, in 1/1024 ms, so that none are equal;
--                        PASSING less for a job of a class that passes, which so comes first
--   shares:heads         sorted set: tenants with parked jobs, by when the next one is due, be it passed or not
--   shares:ready         sorted set: those of them that may run one more job, by their virtual time in 1/1024: a
--                        small sorted set is searched one by one, and whole numbers need no parsing. Whose next
--                        job passes stands there by that job's score, which is below 0
--   shares:jobs          sorted set: tenants by the number of their jobs that have not ended, rounded down to a power
--                        of 2, so that it seldom changes; who has none, by the second since when, below 0
--   shares:deadlines     sorted set: ids of parked jobs by their deadline
--   shares:clock         hash: vtime: the virtual time at which a job was given last; waits, unnamed, prompts:
--                        see `unnamed`; mended: see `made_anew`

-- Seconds for which a tenant without jobs is remembered.
local IDLE_S = 86400

-- What is taken from the score of a job that passes: more than any score, until the year 2109.
local PASSING = 2 ^ 52

-- Tokens of an answer that are charged before it begins. So the slots that are free together go to
-- tenants in turn; and since it is the same for all, nobody gains by what he asks for.
local ADVANCE = 128

-- Fields of `load` that count parked jobs, by level.
local PARKED = {'parked_high', 'parked_normal', 'parked_low'}

-- What a state says of its share: tokens of the prompt, level, bytes.
local function share_of(words)
  local prompt, level, bytes = string.match(words or '', '^(%d+) ([123]) (%d+)$')
  if not prompt then return 0, 2, 0 end
  return prompt + 0, level + 0, bytes + 0
end

-- Whether a job, of whose state these fields are known, waits for its tenant's turn.
local function is_parked(status, share, epoch, charged)
  return status == 'queued' and share and epoch == '0' and not charged
end

-- The parked job of a tenant that is due first, those that pass others left aside; nil if none waits.
local function longest_waiting(parked)
  local first = ask('ZRANGE', parked, 0, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES') or {}
  if not first[1] then first = ask('ZRANGE', parked, 0, 0, 'WITHSCORES') or {} end
  return first[1], tonumber(first[2])
end

-- From what `rose tenants set` has written of a tenant, if anything.
local function weight_of(limits)
  if not limits then return 1 end
  local weight = tonumber(string.match(limits, '^%S+') or '')
  return weight and weight > 0 and weight or 1
end

-- Append to a list of this name, which most tables never need.
local function gather(one, list, word, other)
  local words = one[list]
  if not words then
    one[list] = {word, other}
    return
  end
  local n = #words
  words[n + 1], words[n + 2] = word, other
end

local function bucket_of(jobs)
  if jobs <= 0 then return 0 end
  local _, power = math.frexp(jobs)
  return 2 ^ (power - 1)
end

-- Nothing but a foreign command makes one of these keys another type. It must not keep everybody's jobs from
-- workers for ever: the key is made anew, and the worker says so. Of a single tenant's key there is nothing to make it of.
local function make_anew(accounts, key)
  accounts.made_anew = key
  local ready, heads, jobs = accounts.ready, accounts.heads, accounts.prefix .. 'shares:jobs'
  local source
  for _, other in ipairs(({[ready] = {heads, jobs}, [heads] = {ready, jobs}, [jobs] = {heads, ready}})[key] or {}) do
    source = source or ask('ZCARD', other) and other
  end
  if source then
    -- All are next; whoever has had his turn stands where he belongs.
    redis.call('ZUNIONSTORE', key, 1, source, 'WEIGHTS', 0)
    if key ~= jobs then return end
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZADD', key, bucket_of(accounts.open(name).jobs), name) end
    return
  end
  redis.call('DEL', key)
  if key ~= accounts.prefix .. 'shares:tenants' then return end
  -- What the jobs count that workers have begun on.
  for _, job_id in ipairs(ask('ZRANGE', accounts.prefix .. 'running', 0, -1) or {}) do
    local known = ask('HMGET', accounts.prefix .. 'state:' .. job_id, 'tenant', 'share', 'cost', 'bytes', 'status') or {}
    if known[1] and known[2] and not is_terminal(known[5]) then
      local tenant = accounts.open(known[1])
      tenant.running, tenant.jobs, tenant.dirty = tenant.running + 1, tenant.jobs + 1, true
      tenant.tokens, tenant.bytes = tenant.tokens + (tonumber(known[3] or '') or 0), tenant.bytes + (tonumber(known[4] or '') or 0)
    end
  end
end

-- A record is "<vtime> <last> <tokens> <bytes> <served> <jobs> <running> <parked> <due> <1: in `ready`>", with limits
-- a minute also " <requests> <allowance> <at>":
--   vtime          tokens that its jobs have used, or were charged in advance, divided by its weight
--   last           score of the job that was parked last, before ageing
--   tokens, bytes, jobs   of those that have not ended
--   served         tokens in the logs of its jobs that have ended
--   running        how many of its jobs workers have been given
--   parked, due    how many are parked, and the score of the first
--   requests, allowance, at   what is left of its limits a minute, and since when; "-" without such limits
-- Returns these texts, and what is after them as `minute`; nothing if it is none.
local function parse_record(record)
  return string.match(record or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%-?%d+) (%S+) ([01])(.*)$')
end

-- `last`, `due`, `is_ready` and `minute` are texts.
local function format_record(vtime, last, tokens, bytes, served, jobs, running, parked, due, is_ready, minute)
  return text(vtime) .. ' ' .. last .. string.format(' %d %d %d %d %d %d ', tokens, bytes, served, jobs, running, parked)
    .. due .. ' ' .. is_ready .. minute
end

local function read_record(shares, name, record)
  local vtime, last, tokens, bytes, served, jobs, running, parked, due, is_ready, minute = parse_record(record)
  local tenant
  if vtime then
    vtime, jobs, due, is_ready = tonumber(vtime) or 0, tonumber(jobs), tonumber(due), is_ready == '1'
    -- What is only added to may stay a text.
    tenant = {name = name, key = shares .. 'parked:' .. name, weight = 1, vtime = vtime,
      last = last, tokens = tokens, bytes = bytes, served = served, jobs = jobs, running = tonumber(running),
      parked = tonumber(parked), due = due, had = jobs, was_due = due, was_ready = is_ready,
      stood = due and due < 0 and due or vtime, comes = nil, dirty = nil, look = nil, taken = nil, turn = nil, queue = nil}
    if minute ~= '' then
      local requests, allowance, at = string.match(minute, '(%S+) (%S+) (%S+)')
      tenant.requests, tenant.allowance, tenant.at = tonumber(requests), tonumber(allowance), tonumber(at)
    end
  else
    -- It is new, or somebody has taken its record away.
    local waiting = ask('ZCARD', shares .. 'parked:' .. name) or 0
    tenant = {name = name, key = shares .. 'parked:' .. name, weight = 1, vtime = 0, last = 0, tokens = 0, bytes = 0,
      served = 0, jobs = waiting, running = 0, parked = waiting, look = waiting > 0, had = nil}
  end
  return tenant
end

local function read_limits(tenant, text)
  local words = {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = tonumber(word) or false end
  if words[1] and words[1] > 0 then tenant.weight = words[1] end
  tenant.limited = true
  tenant.max_running, tenant.max_jobs, tenant.max_bytes = words[2], words[3], words[4]
  tenant.max_tokens, tenant.max_requests, tenant.max_allowance = words[5], words[6], words[7]
end

local function tenant_accounts(prefix)
  local stream, limits, shares = prefix .. 'jobs:tenants', prefix .. 'tenants:limits', prefix .. 'shares:'
  local records, ready, heads, jobs = shares .. 'tenants', shares .. 'ready', shares .. 'heads', shares .. 'jobs'
  -- passing: the numbers of the priorities that pass between tenants, once a tenant is open; undue: ids that have no
  -- deadline here any more; heard: an entry has come that wakes a worker; now: Redis' clock, if the caller knows it;
  -- turns: of how many tenants that were ready a call has looked whose turn it is; made_anew: the key that was.
  local accounts = {prefix = prefix, stream = stream, ready = ready, heads = heads, parked_levels = {0, 0, 0}, passing = nil,
    undue = nil, heard = nil, now = nil, turns = nil, made_anew = nil, insist = nil, clock = nil, open_all = nil,
    open = nil, close = nil}
  local opened, order, clock, wakes, more_ready = {}, {}, nil, false, 0

  local function insist(command, key, ...)
    local reply = redis.pcall(command, key, ...)
    if type(reply) ~= 'table' or not reply.err then return reply end
    if not string.find(reply.err, 'WRONGTYPE') then error(reply) end
    make_anew(accounts, key)
    return redis.call(command, key, ...)
  end

  accounts.insist = insist

  -- One command for many arguments. Lua's stack holds some thousands.
  local function write(command, key, words)
    local MOST = 1000
    if not words then return end
    if #words <= MOST then return insist(command, key, unpack(words)) end
    for i = 1, #words, MOST do
      insist(command, key, unpack(words, i, math.min(#words, i + MOST - 1)))
    end
  end

  function accounts.clock()
    if not clock then
      local known = insist('HMGET', shares .. 'clock', 'vtime', 'waits', 'unnamed', 'prompts', 'mended')
      clock = {vtime = tonumber(known[1] or '') or 0, waits = known[2] or '', unnamed = tonumber(known[3] or '') or 0,
        prompts = tonumber(known[4] or '') or 0, mended = known[5] or '', changed = nil, now = nil, settled = nil}
    end
    return clock
  end

  -- Read what is known of tenants, all of them at once.
  function accounts.open_all(names)
    local new = names
    if order[1] then
      new = {}
      for _, name in ipairs(names) do
        if not opened[name] then new[#new + 1] = name end
      end
    end
    if #new == 0 then return end
    local own = insist('HMGET', records, unpack(new))
    local texts = ask('HMGET', limits, ':passes', unpack(new)) or {}
    accounts.passing = texts[1] or ''
    for n, name in ipairs(new) do
      -- It may be named twice, and what made the records anew may have opened it.
      if not opened[name] then
        local tenant = read_record(shares, name, own[n])
        opened[name], order[#order + 1] = tenant, tenant
        if texts[n + 1] then read_limits(tenant, texts[n + 1]) end
      end
    end
  end

  -- A tenant as this call knows it. `close` writes it.
  function accounts.open(name)
    if not opened[name] then accounts.open_all({name}) end
    return opened[name]
  end

  -- Where a tenant stands, after its jobs or its limits have changed. Who was idle, or at a limit,
  -- comes back at the virtual time that the others have reached: it has saved up nothing. Returns its next job's score
  -- as a text, if one waits, and whether it is ready.
  local function place(tenant, all)
    if tenant.look then
      local first = insist('ZRANGE', tenant.key, '0', '0', 'WITHSCORES')
      tenant.due = tonumber(first[2])
      if not first[1] then tenant.parked = 0 end
    end
    local due, was_ready = tenant.due, tenant.was_ready
    local due_text = due and string.format('%d', due)
    if due and due < 0 then
      local _, longest = longest_waiting(tenant.key)
      gather(all, 'heads', string.format('%d', longest < 0 and longest + PASSING or longest), tenant.name)
    elseif due and due ~= tenant.was_due then
      gather(all, 'heads', due_text, tenant.name)
    elseif not due and tenant.was_due then
      gather(all, 'headless', tenant.name)
    end
    if not due or tenant.max_running and tenant.running >= tenant.max_running then
      if was_ready then
        more_ready = more_ready - 1
        gather(all, 'unready', tenant.name)
      end
      return due_text, false
    end
    if not was_ready then
      tenant.vtime, wakes, more_ready = math.max(tenant.vtime, accounts.clock().vtime), true, more_ready + 1
    end
    local stands = due < 0 and due or tenant.vtime
    if was_ready and stands == tenant.stood then return due_text, true end
    gather(all, 'ready', due < 0 and due_text or string.format('%d', math.floor(stands * 1024)), tenant.name)
    return due_text, true
  end

  local function save(tenant, all, due, is_ready)
    local jobs_now, had = tenant.jobs, tenant.had
    local minute = ''
    if tenant.at then
      minute = string.format(' %s %s %d', tenant.requests or '-', tenant.allowance or '-', tenant.at)
    end
    gather(all, 'records', tenant.name, format_record(tenant.vtime, text(tenant.last + 0), tenant.tokens, tenant.bytes,
      tenant.served, jobs_now, tenant.running, tenant.parked, due or '-', is_ready and '1' or '0', minute))
    if jobs_now == had then return end
    local score = bucket_of(jobs_now)
    if had and jobs_now > 0 and score == bucket_of(had) then return end
    if jobs_now == 0 then score = -math.floor((accounts.now or now_ms()) / 1000) end
    gather(all, 'jobs', string.format('%d', score), tenant.name)
  end

  -- Write what has changed, and wake a worker if a tenant has become ready though no entry has come that wakes
  -- one.
  function accounts.close(load)
    local all = {records = nil, heads = nil, headless = nil, ready = nil, unready = nil, jobs = nil}
    for _, tenant in ipairs(order) do
      if tenant.dirty then
        write('ZADD', tenant.key, tenant.comes)
        write('ZREM', tenant.key, tenant.goes)
        if tenant.taken then insist('ZREMRANGEBYRANK', tenant.key, '0', string.format('%d', tenant.taken - 1)) end
        save(tenant, all, place(tenant, all))
      end
    end
    write('HSET', records, all.records)
    write('ZADD', heads, all.heads)
    write('ZREM', heads, all.headless)
    write('ZADD', ready, all.ready)
    write('ZREM', ready, all.unready)
    write('ZADD', jobs, all.jobs)
    write('ZREM', shares .. 'deadlines', accounts.undue)
    for level = 1, 3 do add_to(load, PARKED[level], accounts.parked_levels[level]) end
    if accounts.made_anew then
      accounts.clock().changed = true
      clock.mended = string.format('%d %s', now_ms(), accounts.made_anew)
    end
    -- What waits behind whoever has had a turn now: "tenants" if a tenant is ready that has got no slot, else "".
    local waits = accounts.turns and (accounts.turns + more_ready > 0 and 'tenants' or '')
    if waits and waits ~= accounts.clock().waits then clock.waits, clock.changed = waits, true end
    if clock and clock.changed then
      redis.call('HSET', shares .. 'clock', 'vtime', clock.vtime, 'waits', clock.waits,
        'unnamed', clock.unnamed, 'prompts', clock.prompts, unpack(accounts.made_anew and {'mended', clock.mended} or {}))
    end
    if wakes and not accounts.heard then insist('XADD', prefix .. 'idle:wakeup', 'MAXLEN', 1, '*', 'wakeup', '1') end
  end

  return accounts
end
