-- Tenants. One function, because Redis makes every function of a script anew at every call: whoever has
-- no tenant pays for one alone. Behind common.lua.
-- What a call changes of a tenant is gathered, and `close` writes it: once a tenant, not once a job.
--
-- Keys of a tenant, behind the prefix of its partition ("rose:{Q:P}:"):
--   tenant:NAME          hash, see below
--   tenant:NAME:parked   sorted set: ids of its jobs that wait, by when they are due: the time of enqueueing
--                        and `ageing` for each level below the first, in 1/1024 ms, so that none are equal;
--                        PASSING less for a job of a class that passes, which so comes first
--   tenant:NAME:running  set: ids of its jobs that stand in jobs:tenants and have not ended
-- Keys of all tenants:
--   tenants:limits       hash: by name "<weight> <running> <jobs> <bytes> <tokens> <requests a minute>
--                        <tokens a minute>", "-" for no limit; by ":passes", which no tenant is called, the
--                        numbers of the priorities that pass between tenants
--   tenants:heads        sorted set: tenants with parked jobs, by when the next one is due, be it passed or not
--   tenants:ready        sorted set: those of them that may run one more job, by their virtual time in 1/1024: a
--                        small sorted set is searched one by one, and whole numbers need no parsing. Whose next
--                        job passes stands there by that job's score, which is below 0
--   tenants:jobs         sorted set: tenants by the number of their jobs that have not ended
--   tenants:messages     hash: parked jobs, by their ids
--   tenants:deadlines    sorted set: ids of parked jobs by their deadline
--   tenants:worker       string: exists while workers live that know of tenants
--   tenants:clock        hash: vtime: the virtual time at which a job was moved last; waits, unnamed, prompts:
--                        see `unnamed`; mended: see `made_anew`
-- The hash of a tenant:
--   vtime          tokens that its jobs have used, or were charged in advance, divided by its weight
--   last           score of the job that was parked last, before ageing
--   tokens, bytes  of its jobs that have not ended
--   served         tokens in the logs of its jobs that have ended
--   requests, allowance, at   what is left of its limits a minute, and since when

-- Seconds for which a tenant without jobs is remembered.
local IDLE_S = 86400

-- What is taken from the score of a job that passes: more than any score, until the year 2109.
local PASSING = 2 ^ 52

-- Tokens of an answer that are charged before it begins. So the slots that are free together go to
-- tenants in turn; and since it is the same for all, nobody gains by what he asks for.
local ADVANCE = 128

-- The parked job of a tenant that is due first, those that pass others left aside; nil if none waits.
local function longest_waiting(parked)
  local first = ask('ZRANGE', parked, 0, '+inf', 'BYSCORE', 'LIMIT', 0, 1) or {}
  return first[1] or (ask('ZRANGE', parked, 0, 0) or {})[1]
end

local function tenant_book(prefix)
  local book, opened, order, clock = {}, {}, {}, nil
  local parked_levels, rings, ageing, any_limits, passing = {0, 0, 0}, false, nil, nil, nil
  -- What `close` writes: jobs that are parked, ids of those that are no more, ids that have no deadline here
  -- any more.
  local messages, parked, unparked, undue = prefix .. 'tenants:messages', {}, {}, {}
  local LEVELS = {'parked_high', 'parked_normal', 'parked_low'}

  local function rank(vtime)
    return math.floor(vtime * 1024)
  end

  local function count_of(value)
    return tonumber(value or '') or 0
  end

  -- Nothing but a foreign command makes one of these keys another type. It must not keep everybody's jobs from
  -- workers for ever: the key is made anew, and the worker says so.
  local mended

  -- Of a single tenant there is nothing to make it of.
  local function made_anew(key)
    mended = key
    local name, source = string.match(key, '}:tenants:(%a+)$'), nil
    for _, other in ipairs(({ready = {'heads', 'jobs'}, heads = {'ready', 'jobs'}, jobs = {'heads', 'ready'}})[name] or {}) do
      source = source or ask('ZCARD', prefix .. 'tenants:' .. other) and prefix .. 'tenants:' .. other
    end
    if not source then return redis.call('DEL', key) end
    -- All are next; whoever has had his turn stands where he belongs.
    redis.call('ZUNIONSTORE', key, 1, source, 'WEIGHTS', 0)
    if name ~= 'jobs' then return end
    for _, tenant in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      local own = prefix .. 'tenant:' .. tenant
      redis.call('ZADD', key, (ask('ZCARD', own .. ':parked') or 0) + (ask('SCARD', own .. ':running') or 0), tenant)
    end
  end

  local function insist(command, key, ...)
    local reply = redis.pcall(command, key, ...)
    if type(reply) ~= 'table' or not reply.err then return reply end
    if not string.find(reply.err, 'WRONGTYPE') then error(reply) end
    made_anew(key)
    return redis.call(command, key, ...)
  end

  book.insist = insist

  -- One command for many arguments. Lua's stack holds some thousands.
  local function write(command, key, words)
    local MOST = 1000
    for i = 1, words and #words or 0, MOST do
      insist(command, key, unpack(words, i, math.min(#words, i + MOST - 1)))
    end
  end

  local function gather(tenant, list, word, other)
    local words = tenant[list]
    if not words then
      words = {}
      tenant[list] = words
    end
    words[#words + 1] = word
    if other then words[#words + 1] = other end
  end

  local function read_clock()
    if not clock then
      local known = insist('HMGET', prefix .. 'tenants:clock', 'vtime', 'waits', 'unnamed', 'prompts', 'mended')
      clock = {vtime = count_of(known[1]), waits = known[2] or '', unnamed = count_of(known[3]),
        prompts = count_of(known[4]), mended = known[5] or ''}
    end
    return clock
  end

  local function read_limits(tenant)
    local key, known, limits = prefix .. 'tenants:limits', {}, {}
    if any_limits == nil then any_limits = redis.call('EXISTS', key) == 1 end
    if any_limits then known = ask('HMGET', key, tenant.name, ':passes') or {} end
    passing = known[2] or ''
    for word in string.gmatch(known[1] or '', '%S+') do limits[#limits + 1] = tonumber(word) or false end
    tenant.weight = limits[1] and limits[1] > 0 and limits[1] or 1
    tenant.max_running, tenant.max_jobs, tenant.max_bytes = limits[2], limits[3], limits[4]
    tenant.max_tokens, tenant.max_requests, tenant.max_allowance = limits[5], limits[6], limits[7]
  end

  -- The numbers of the priorities that pass between tenants.
  function book.passing()
    passing = passing or (ask('HMGET', prefix .. 'tenants:limits', ':passes') or {})[1] or ''
    return passing
  end

  -- A tenant as this call knows it. `close` writes it.
  function book.open(name)
    local tenant = opened[name]
    if tenant then return tenant end
    local key = prefix .. 'tenant:' .. name
    tenant = {name = name, key = key, parked = key .. ':parked', running = key .. ':running', more = 0}
    read_limits(tenant)
    local known
    if tenant.max_requests or tenant.max_allowance then
      known = insist('HMGET', key, 'vtime', 'last', 'tokens', 'bytes', 'served', 'requests', 'allowance', 'at')
    else
      known = insist('HMGET', key, 'vtime', 'last', 'tokens', 'bytes', 'served')
    end
    tenant.vtime, tenant.last = count_of(known[1]), count_of(known[2])
    tenant.tokens, tenant.bytes, tenant.served = count_of(known[3]), count_of(known[4]), count_of(known[5])
    tenant.requests, tenant.allowance = tonumber(known[6] or ''), tonumber(known[7] or '')
    tenant.at, tenant.old_vtime, tenant.old_served = tonumber(known[8] or ''), tenant.vtime, tenant.served
    opened[name], order[#order + 1] = tenant, tenant
    return tenant
  end

  -- `close` looks where it stands now, and writes it.
  local function touch(tenant)
    tenant.changed, tenant.dirty, tenant.touched = true, true, true
  end

  -- How many of its jobs run.
  local function running(tenant)
    if not tenant.busy then tenant.busy = insist('SCARD', tenant.running) end
    return tenant.busy
  end

  -- What a minute allows, up to now. A time in the future is from before Redis' clock was set back.
  local function refill(tenant, now)
    local minutes = math.max(0, now - (tenant.at or 0)) / 60000
    for left, most in pairs({requests = tenant.max_requests, allowance = tenant.max_allowance}) do
      if most then tenant[left] = math.min(most, (tenant[left] or most) + minutes * most) end
    end
    tenant.at = now
  end

  -- Why one more job is refused; nil if it is not.
  function book.refusal(tenant, cost, size, now)
    local SOON_MS = 1000
    if not any_limits then return nil end
    if tenant.max_jobs and not tenant.jobs then
      tenant.jobs = count_of(insist('ZSCORE', prefix .. 'tenants:jobs', tenant.name))
    end
    local function limited(limit, count, most, ms)
      return {'LIMITED', tenant.name, limit, string.format('%d', count), string.format('%d', most),
        string.format('%d', math.ceil(ms))}
    end
    for _, queued in ipairs({{'jobs', 1}, {'bytes', size}, {'tokens', cost}}) do
      local unit, more = unpack(queued)
      local most = tenant['max_' .. unit]
      if most and tenant[unit] + more > most then
        return limited('max_queued_' .. unit, tenant[unit], most, SOON_MS)
      end
    end
    if not tenant.max_requests and not tenant.max_allowance then return nil end
    refill(tenant, now)
    -- Who asks for more than a minute allows gets it when a whole minute is left, and then waits the longer.
    local need = math.min(cost, tenant.max_allowance or cost)
    if tenant.max_requests and tenant.requests < 1 then
      return limited('requests_per_minute', tenant.max_requests - math.max(0, tenant.requests), tenant.max_requests,
        (1 - tenant.requests) / tenant.max_requests * 60000)
    end
    if tenant.max_allowance and tenant.allowance < need then
      return limited('tokens_per_minute', tenant.max_allowance - math.max(0, tenant.allowance), tenant.max_allowance,
        (need - tenant.allowance) / tenant.max_allowance * 60000)
    end
  end

  -- A job comes: it counts for the limits until `settle`, and for those of a minute.
  function book.accept(tenant, cost, size)
    tenant.more, tenant.jobs = tenant.more + 1, tenant.jobs and tenant.jobs + 1
    tenant.tokens, tenant.bytes, tenant.counts = tenant.tokens + cost, tenant.bytes + size, true
    tenant.dirty = true
    if tenant.max_requests and tenant.requests then tenant.requests = tenant.requests - 1 end
    if tenant.max_allowance and tenant.allowance then tenant.allowance = tenant.allowance - cost end
  end

  function book.park(tenant, job_id, level, job, now, deadline_ms)
    ageing = ageing or tonumber(redis.call('HMGET', prefix .. 'model', 'ageing_ms')[1] or '') or 60000
    tenant.last = math.max(now * 1024, tenant.last + 1)
    local due = tenant.last + (level - 1) * ageing * 1024
    if passing ~= '' and string.find(passing, level, 1, true) then due = due - PASSING end
    gather(tenant, 'comes', string.format('%d', due), job_id)
    parked[#parked + 1], parked[#parked + 2] = job_id, job
    if deadline_ms then insist('ZADD', prefix .. 'tenants:deadlines', deadline_ms, job_id) end
    parked_levels[level] = parked_levels[level] + 1
    tenant.changed, tenant.dirty, tenant.first_due = true, true, math.min(due, tenant.first_due or due)
  end

  -- Where a tenant stands, after its jobs or its limits have changed. Who was idle, or at a limit,
  -- comes back at the virtual time that the others have reached: it has saved up nothing.
  local function place(tenant)
    local heads, ready = prefix .. 'tenants:heads', prefix .. 'tenants:ready'
    local first = insist('ZRANGE', tenant.parked, 0, 0, 'WITHSCORES')
    if not first[1] then
      insist('ZREM', heads, tenant.name)
      insist('ZREM', ready, tenant.name)
      return
    end
    local passes, due = tonumber(first[2]) < 0, first[2]
    -- Jobs have come behind others: it stands where it stood.
    if tenant.first_due and not tenant.touched and not passes and tonumber(due) < tenant.first_due then return end
    if passes then
      due = redis.call('ZRANGE', tenant.parked, 0, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
        or string.format('%d', first[2] + PASSING)
    end
    insist('ZADD', heads, due, tenant.name)
    if tenant.max_running and insist('SCARD', tenant.running) >= tenant.max_running then
      insist('ZREM', ready, tenant.name)
      return
    end
    if not tenant.rank and not insist('ZSCORE', ready, tenant.name) then
      tenant.vtime = math.max(tenant.vtime, read_clock().vtime)
      rings, tenant.dirty = true, true
    end
    redis.call('ZADD', ready, passes and first[2] or text(rank(tenant.vtime)), tenant.name)
  end

  -- Its virtual time has changed, and what it runs, but not what it has parked.
  local function price(tenant)
    tenant.dirty = true
    if tenant.max_running or passing ~= '' then touch(tenant) else tenant.priced = true end
  end

  -- A parked job; nil if somebody has taken it away.
  local function message_of(job_id)
    return (ask('HMGET', messages, job_id) or {})[1]
  end

  local function release_parked(tenant, job_id, level, has_deadline)
    level = LEVELS[tonumber(level or '')] and tonumber(level) or 2
    gather(tenant, 'goes', job_id)
    unparked[#unparked + 1] = job_id
    if has_deadline then undue[#undue + 1] = job_id end
    parked_levels[level] = parked_levels[level] - 1
    touch(tenant)
  end

  -- A job of a tenant has ended with `logged` tokens: what was charged in advance makes room for what it used.
  -- `known`: of its state tenant, cost, bytes, charged and counted, if the caller has read them and writes
  -- itself that it counts no more. Returns whether it counted for one until now.
  function book.settle(state, logged, known)
    local written = known ~= nil
    known = known or ask('HMGET', state, 'tenant', 'cost', 'bytes', 'charged', 'counted') or {}
    if not known[1] or known[5] ~= '1' then return false end
    if not written then redis.call('HDEL', state, 'counted') end
    local tenant = book.open(known[1])
    local cost = count_of(known[2])
    if known[4] then
      gather(tenant, 'ends', id_of(state))
      tenant.vtime = tenant.vtime + (logged - count_of(known[4])) / tenant.weight
    end
    tenant.more, tenant.served, tenant.counts = tenant.more - 1, tenant.served + logged, true
    tenant.tokens = math.max(0, tenant.tokens - cost)
    tenant.bytes = math.max(0, tenant.bytes - count_of(known[3]))
    if tenant.max_allowance and tenant.allowance then
      local prompt = count_of((ask('HMGET', state, 'prompt') or {})[1])
      tenant.allowance = math.min(tenant.max_allowance, tenant.allowance + cost - prompt - logged)
    end
    price(tenant)
    return true
  end

  -- A job of this tenant that runs has `logged` tokens. If they are more than were charged for it, so are
  -- some more: in portions, so that it is seldom.
  function book.charge(state, name, charged, logged)
    local MIN_PORTION = 16
    local tenant, upto = book.open(name), logged + math.max(MIN_PORTION, math.floor(logged / 4))
    tenant.vtime = tenant.vtime + (upto - charged) / tenant.weight
    price(tenant)
    redis.call('HSET', state, 'charged', upto)
  end

  -- End a job that is parked. Returns false if it is not.
  function book.end_parked(state, status, event, now, ttl_s)
    local known = ask('HMGET', state, 'status', 'tenant', 'level', 'entry', 'deadline_ms') or {}
    if known[1] ~= 'queued' or not known[2] or known[4] then return false end
    release_parked(book.open(known[2]), id_of(state), known[3], known[5])
    end_job(state, (string.gsub(state, ':state:', ':tokens:', 1)), held_by(state), status, event,
      string.format('%d', now), ttl_s)
    book.settle(state, 0)
    return true
  end

  -- End parked jobs whose deadline has passed. Returns how many there were, at most `count`.
  function book.expire(now, count, event, ttl_s)
    local deadlines = prefix .. 'tenants:deadlines'
    local due = insist('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, count)
    for _, job_id in ipairs(due) do
      if not book.end_parked(prefix .. 'state:' .. job_id, 'failed', event, now, ttl_s) then
        redis.call('ZREM', deadlines, job_id)
      end
    end
    return #due
  end

  -- The limits of a tenant have changed.
  function book.replace(name)
    if insist('ZSCORE', prefix .. 'tenants:heads', name) then touch(book.open(name)) end
  end

  -- Whether tenants' jobs are parked. If only workers live that know nothing of tenants, nobody would move
  -- them: then they go where those look.
  function book.parks(stream)
    local GROUP, RELEASED, ALIVE_MS = 'workers', 'released', 15000
    if redis.call('EXISTS', prefix .. 'tenants:worker') == 1 then return true end
    local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, GROUP)
    for _, info in ipairs(consumers.err and {} or consumers) do
      local consumer = by_name(info)
      if consumer.name ~= RELEASED and consumer.idle < ALIVE_MS then return false end
    end
    return true
  end

  -- Put parked jobs, at most `count`, into the job streams, where every worker looks.
  function book.unpark(count, group_streams)
    for _, name in ipairs(insist('ZRANGE', prefix .. 'tenants:heads', 0, count - 1)) do
      local tenant = book.open(name)
      for _, job_id in ipairs(insist('ZRANGE', tenant.parked, 0, count - 1)) do
        if count == 0 then return end
        count = count - 1
        local state = prefix .. 'state:' .. job_id
        local job, known = message_of(job_id), ask('HMGET', state, 'status', 'level') or {}
        release_parked(tenant, job_id, known[2], true)
        if not book.settle(state, 0) then tenant.more = tenant.more - 1 end
        if job and known[1] == 'queued' then
          local stream = group_streams[tonumber(known[2] or '')] or group_streams[2]
          redis.call('HSET', state, 'stream', stream, 'entry', redis.call('XADD', stream, '*', 'job', job))
        end
      end
    end
  end

  -- Whose turn it is. `ready` is read in portions and stays as it was until `close`; those that have had
  -- their turn in this call stand in `again`, the least virtual time last.
  local PORTION = 64
  local page, at, read, again, share, advance = nil, 1, 0, {}, 2, text(ADVANCE)

  local function before(one, other)
    return one.rank < other.rank or one.rank == other.rank and one.name < other.name
  end

  local function first_unserved()
    local ready = prefix .. 'tenants:ready'
    if not page or at > #page and #page == 2 * PORTION then
      page, at, read = insist('ZRANGE', ready, read, read + PORTION - 1, 'WITHSCORES'), 1, read + PORTION
    end
    if page[at] then return {name = page[at], rank = tonumber(page[at + 1])} end
  end

  -- `count`: of slots that are free.
  function book.begin_turns(count)
    share = math.ceil(count / math.max(1, insist('ZCARD', prefix .. 'tenants:ready'))) + 1
  end

  -- The tenant whose turn it is, and its virtual time, or the score of its next job if that passes; nil if
  -- none may run one more job.
  function book.next()
    local one, other = first_unserved(), again[#again]
    local tenant = other
    if one and not (other and before(other, one)) then
      tenant = book.open(one.name)
      tenant.rank = one.rank
    end
    return tenant, tenant and (tenant.rank < 0 and tenant.rank or tenant.vtime)
  end

  -- The next of its jobs that wait; nil if there is none.
  local function next_parked(tenant)
    local jobs = tenant.queue
    if not jobs or jobs[tenant.next] == nil and #jobs == tenant.portion then
      tenant.offset = jobs and tenant.offset + tenant.portion or 0
      tenant.portion = jobs and 2 * tenant.portion or share
      jobs = insist('ZRANGE', tenant.parked, tenant.offset, tenant.offset + tenant.portion - 1)
      tenant.queue, tenant.next = jobs, 1
    end
    return jobs[tenant.next]
  end

  -- The job of a tenant that is next. Some are read together, but few: each of them may be large.
  local function next_message(tenant, job_id)
    local MOST = 8
    local found = tenant.messages
    if not found or found[job_id] == nil then
      local ids = {unpack(tenant.queue, tenant.next, math.min(#tenant.queue, tenant.next + math.min(MOST, share - 1) - 1))}
      local jobs = ask('HMGET', messages, unpack(ids)) or {}
      found = {}
      for n, id in ipairs(ids) do found[id] = jobs[n] or false end
      tenant.messages = found
    end
    return found[job_id]
  end

  -- Where it stands in `tenants:ready` after a turn. Jobs that pass come before its others.
  local function next_rank(tenant)
    if tenant.rank < 0 then
      local number = tenant.offset + tenant.next - 1
      local due = tonumber(redis.call('ZRANGE', tenant.parked, number, number, 'WITHSCORES')[2])
      if due < 0 then return due end
    end
    return rank(tenant.vtime)
  end

  -- It may have another turn in this call.
  local function queue_again(tenant)
    if not next_parked(tenant) or tenant.max_running and running(tenant) >= tenant.max_running then return end
    tenant.rank = next_rank(tenant)
    local low, high = 1, #again + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if before(tenant, again[middle]) then low = middle + 1 else high = middle end
    end
    table.insert(again, low, tenant)
  end

  -- Its virtual time without what was charged in advance. The clock goes by it: who is put where others
  -- are with their advances would wait for all that they are given back. Jobs that pass do not move the clock:
  -- their tenant may be far ahead of all others.
  local function settled(tenant)
    return tenant.vtime - running(tenant) * ADVANCE / tenant.weight
  end

  -- Move the next job of the tenant whose turn it is to the stream `moved`. Returns its size; nil if it
  -- needs no slot any more. `begin` notes in its state where it stands and what was charged.
  function book.move(tenant, moved, now, event, ttl_s, begin)
    if again[#again] == tenant then again[#again] = nil else at = at + 2 end
    local job_id = next_parked(tenant)
    -- It is ready no more only where `tenants:ready` was made anew.
    local full = tenant.max_running and running(tenant) >= tenant.max_running
    if not job_id or full then return touch(tenant) end
    local state, job = prefix .. 'state:' .. job_id, next_message(tenant, job_id)
    tenant.next = tenant.next + 1
    local known = ask('HMGET', state, 'status', 'entry', 'level', 'prompt', 'deadline_ms', 'epoch', 'cancel',
      'enqueued_ms') or {}
    local waits = job and known[1] == 'queued' and not known[2]
    if waits and is_count(known[5]) and tonumber(known[5]) <= now then
      book.end_parked(state, 'failed', event, now, ttl_s)
      return queue_again(tenant)
    end
    release_parked(tenant, job_id, known[3], known[5] or not waits)
    if not waits then
      -- A client of an older version has cancelled it, or a foreign command has changed it.
      if is_terminal(known[1]) then bury(state, (string.gsub(state, ':state:', ':tokens:', 1)), ttl_s) end
      if not book.settle(state, 0) then tenant.more = tenant.more - 1 end
      return queue_again(tenant)
    end
    local prompt, all = count_of(known[4]), read_clock()
    if tenant.rank >= 0 then all.vtime, all.changed = math.max(all.vtime, settled(tenant)), true end
    tenant.vtime = tenant.vtime + (prompt + ADVANCE) / tenant.weight
    local entry = redis.call('XADD', moved, '*', 'job', job)
    begin(job_id, entry, advance, {known[6], known[7], known[5], known[8]})
    gather(tenant, 'begins', job_id)
    tenant.busy = running(tenant) + 1
    queue_again(tenant)
    return #job
  end

  -- Jobs without a tenant compete as one tenant of weight 1. What they use is what was logged and is not of
  -- tenants, the prompts that were read beside parked jobs, and the advance for each that runs.
  -- Where nothing of tenants was left to wait the last time, they begin at the clock; else they only catch
  -- up with it, as a tenant does that comes back.
  function book.unnamed(load, running, moved)
    local all = read_clock()
    local logged = redis.call('HMGET', load, 'generated', 'generated_tenants')
    local own = math.max(0, redis.call('ZCARD', running) - redis.call('XLEN', moved))
    local used = count_of(logged[1]) - count_of(logged[2]) + all.prompts
    if all.waits ~= 'tenants' or all.unnamed + used < all.vtime then
      all.unnamed, all.changed = all.vtime - used, true
    end
    all.settled = all.unnamed + used
    all.now = all.settled + own * ADVANCE
    return all.now
  end

  -- One of them was read. `passed`: before its turn.
  function book.read_unnamed(size, passed)
    local all = read_clock()
    all.changed = true
    if not passed then all.vtime = math.max(all.vtime, all.settled) end
    all.prompts = all.prompts + math.ceil(size / 4)
    all.now = all.now + math.ceil(size / 4) + ADVANCE
    return all.now
  end

  -- What waits after a fetch: "tenants" if a tenant is ready that has got no slot, else "".
  local function note_waits()
    local all = read_clock()
    local waits = redis.call('EXISTS', prefix .. 'tenants:ready') == 1 and 'tenants' or ''
    if waits ~= all.waits then all.waits, all.changed = waits, true end
  end

  -- The key that was made anew in the last minute, and when: "" for none.
  function book.mended(now)
    local at = string.match(read_clock().mended, '^%d+')
    return at and now - at < 60000 and clock.mended or ''
  end

  local function save(tenant)
    local fields = {}
    local function add(field, value)
      fields[#fields + 1], fields[#fields + 2] = field, value
    end
    if tenant.vtime ~= tenant.old_vtime then add('vtime', text(tenant.vtime)) end
    if tenant.comes then add('last', string.format('%d', tenant.last)) end
    if tenant.counts then
      add('tokens', text(tenant.tokens))
      add('bytes', text(tenant.bytes))
      if tenant.served ~= tenant.old_served then add('served', text(tenant.served)) end
    end
    if tenant.at then
      add('requests', tenant.requests or '')
      add('allowance', tenant.allowance or '')
      add('at', tenant.at)
    end
    if #fields > 0 then redis.call('HSET', tenant.key, unpack(fields)) end
    if tenant.more == 0 then return end
    local jobs = tonumber(insist('ZINCRBY', prefix .. 'tenants:jobs', text(tenant.more), tenant.name))
    if jobs <= 0 then
      redis.call('ZREM', prefix .. 'tenants:jobs', tenant.name)
      redis.call('EXPIRE', tenant.key, IDLE_S)
    elseif jobs == tenant.more then
      redis.call('PERSIST', tenant.key)
    end
  end

  -- Write what has changed, and wake a worker if a tenant has become ready. `fetched`: a worker has got
  -- what it can do.
  function book.close(load, fetched)
    for _, tenant in ipairs(order) do
      write('ZADD', tenant.parked, tenant.comes)
      write('ZREM', tenant.parked, tenant.goes)
      write('SADD', tenant.running, tenant.begins)
      write('SREM', tenant.running, tenant.ends)
      if tenant.changed then
        place(tenant)
      elseif tenant.priced then
        insist('ZADD', prefix .. 'tenants:ready', 'XX', text(rank(tenant.vtime)), tenant.name)
      end
      if tenant.dirty then save(tenant) end
    end
    write('HSET', messages, parked)
    write('HDEL', messages, unparked)
    write('ZREM', prefix .. 'tenants:deadlines', undue)
    for level, count in ipairs(parked_levels) do add_to(load, LEVELS[level], count) end
    if fetched then note_waits() end
    if mended then
      read_clock().changed = true
      clock.mended = string.format('%d %s', now_ms(), mended)
    end
    if clock and clock.changed then
      redis.call('HSET', prefix .. 'tenants:clock', 'vtime', clock.vtime, 'waits', clock.waits,
        'unnamed', clock.unnamed, 'prompts', clock.prompts, unpack(mended and {'mended', clock.mended} or {}))
    end
    if rings then insist('XADD', prefix .. 'idle:bell', 'MAXLEN', 1, '*', 'ring', '1') end
  end

  return book
end
