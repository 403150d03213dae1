-- Jobs of tenants on their way in, and out again before a worker was given them. Behind common_tenants.lua.

-- End a job that is parked. Returns false if it is not: then a worker was given it, or no submit has parked it.
local function end_parked(book, state, status, event, now, ttl_s)
  local known = ask('HMGET', state, 'status', 'share', 'epoch', 'charged', 'tenant', 'entry', 'deadline_ms', 'cost',
    'bytes') or {}
  if not is_parked(unpack(known, 1, 4)) or not known[5] or not known[6] then return false end
  local _, level = share_of(known[2])
  release_parked(book, book.open(known[5]), id_of(state), level, known[7])
  end_job(state, (string.gsub(state, ':state:', ':tokens:', 1)), held_by(state), status, event,
    string.format('%d', now), ttl_s)
  ask('XDEL', book.stream, known[6])
  settle(book, known[5], known[2], known[8], known[9], nil, 0)
  return true
end

-- End parked jobs whose deadline has passed, at most `count`.
local function end_late(book, now, count, event, ttl_s)
  local deadlines = book.prefix .. 'shares:deadlines'
  local due = book.insist('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, count)
  for _, job_id in ipairs(due) do
    if not end_parked(book, book.prefix .. 'state:' .. job_id, 'failed', event, now, ttl_s) then
      redis.call('ZREM', deadlines, job_id)
    end
  end
end

-- Forget tenants that have had no jobs for long.
local function forget_idle(book, now, count)
  local since, jobs = math.floor(now / 1000) - IDLE_S, book.prefix .. 'shares:jobs'
  local idle = since > 0 and book.insist('ZRANGEBYSCORE', jobs, string.format('(%d', -since), '(0', 'LIMIT', 0, count) or {}
  if #idle == 0 then return end
  redis.call('HDEL', book.prefix .. 'shares:tenants', unpack(idle))
  redis.call('ZREM', jobs, unpack(idle))
end

-- Why one more job of a tenant is refused; nil if it is not.
local function refusal(tenant, cost, size, now)
  local SOON_MS = 1000
  local function limited(limit, count, most, ms)
    return {'LIMITED', tenant.name, limit, string.format('%d', count), string.format('%d', most),
      string.format('%d', math.ceil(ms))}
  end
  local function full(unit, more)
    local most = tenant['max_' .. unit]
    return most and tenant[unit] + more > most and limited('max_queued_' .. unit, tenant[unit], most, SOON_MS)
  end
  local refused = full('jobs', 1) or full('bytes', size) or full('tokens', cost)
  if refused then return refused end
  local requests, allowance = tenant.max_requests, tenant.max_allowance
  if not requests and not allowance then return nil end
  -- What a minute allows, up to now. A time in the future is from before Redis' clock was set back.
  local minutes = math.max(0, now - (tenant.at or 0)) / 60000
  if requests then tenant.requests = math.min(requests, (tenant.requests or requests) + minutes * requests) end
  if allowance then tenant.allowance = math.min(allowance, (tenant.allowance or allowance) + minutes * allowance) end
  tenant.at = now
  -- Who asks for more than a minute allows gets it when a whole minute is left, and then waits the longer.
  local need = math.min(cost, allowance or cost)
  if requests and tenant.requests < 1 then
    return limited('requests_per_minute', requests - math.max(0, tenant.requests), requests,
      (1 - tenant.requests) / requests * 60000)
  end
  if allowance and tenant.allowance < need then
    return limited('tokens_per_minute', allowance - math.max(0, tenant.allowance), allowance,
      (need - tenant.allowance) / allowance * 60000)
  end
end

-- A job comes: it counts for the limits until `settle`, and for those of a minute.
local function accept(tenant, cost, size)
  tenant.jobs, tenant.tokens, tenant.bytes = tenant.jobs + 1, tenant.tokens + cost, tenant.bytes + size
  if not tenant.at then return end
  if tenant.max_requests and tenant.requests then tenant.requests = tenant.requests - 1 end
  if tenant.max_allowance and tenant.allowance then tenant.allowance = tenant.allowance - cost end
end

-- What each level below the first waits longer, in ms, from what workers have announced.
local function ageing_of(announced)
  return tonumber(announced or '') or 60000
end

-- When a job that comes now is due: behind all of its level, though Redis' clock was set back. And the same before
-- ageing, which is its tenant's `last` then.
local function next_due(last, level, now, ageing)
  last = math.max(last + 1, now * 1024)
  return last + (level - 1) * ageing * 1024, last
end

-- Its entry has come already. `due`: its score, if it had one before.
local function park(book, tenant, job_id, level, now, deadline_ms, due)
  due = due and tonumber(due)
  if not due then
    book.ageing = book.ageing or ageing_of(redis.call('HMGET', book.prefix .. 'model', 'ageing_ms')[1])
    due, tenant.last = next_due(tenant.last, level, now, book.ageing)
    if book.passing ~= '' and string.find(book.passing, level, 1, true) then due = due - PASSING end
  end
  gather(tenant, 'comes', string.format('%d', due), job_id)
  tenant.parked, tenant.dirty = tenant.parked + 1, true
  if not tenant.due or due < tenant.due then tenant.due = due end
  if deadline_ms then book.insist('ZADD', book.prefix .. 'shares:deadlines', deadline_ms, job_id) end
  local levels = book.parked_levels
  levels[level], book.heard = levels[level] + 1, true
end

-- Whether tenants' jobs are parked. If only workers live that do not look for parked ones, they go where those
-- look.
local function parks_tenants(prefix, stream)
  local GROUP, RELEASED, ALIVE_MS = 'workers', 'released', 15000
  if redis.call('EXISTS', prefix .. 'shares:worker') == 1 then return true end
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, GROUP)
  for _, info in ipairs(consumers.err and {} or consumers) do
    local consumer = by_name(info)
    if consumer.name ~= RELEASED and consumer.idle < ALIVE_MS then return false end
  end
  return true
end

-- Put parked jobs, at most `count`, into the job streams, where every worker looks.
local function unpark(book, count, group_streams)
  for _, name in ipairs(book.insist('ZRANGE', book.heads, 0, count - 1)) do
    local tenant = book.open(name)
    for _, job_id in ipairs(book.insist('ZRANGE', tenant.key, 0, count - 1)) do
      if count == 0 then return end
      count = count - 1
      local state = book.prefix .. 'state:' .. job_id
      local known = ask('HMGET', state, 'status', 'share', 'epoch', 'charged', 'entry', 'deadline_ms') or {}
      local parked, _, level = is_parked(unpack(known, 1, 4)), share_of(known[2])
      local entry = parked and known[5] and redis.call('XRANGE', book.stream, known[5], known[5])[1]
      release_parked(book, tenant, job_id, level, known[6])
      if parked then settle_state(book, state, 0) end
      if entry then
        local stream = group_streams[level]
        redis.call('HSET', state, 'stream', stream, 'entry', redis.call('XADD', stream, '*', 'job', job_of(entry)))
        redis.call('HDEL', state, 'share')
        redis.call('XDEL', book.stream, known[5])
      end
    end
  end
end

-- Park jobs, at most about `count`, that the version before has parked: it kept them in tenants:messages, and what it
-- counted in other keys. A worker of it that lives may hold them back, since it does not see what others have ended.
local function park_earlier(book, count, ttl_s)
  local prefix = book.prefix
  local earlier, messages = prefix .. 'tenants:', prefix .. 'tenants:messages'
  if redis.call('EXISTS', earlier .. 'clock') == 0 then return end
  local found = redis.call('HSCAN', messages, 0, 'COUNT', count)[2]
  for n = 1, #found, 2 do
    local job_id, state = found[n], prefix .. 'state:' .. found[n]
    local known = ask('HMGET', state, 'status', 'entry', 'tenant', 'level', 'cost', 'bytes', 'deadline_ms', 'prompt') or {}
    if known[1] == 'queued' and not known[2] and known[3] then
      local tenant, cost, size = book.open(known[3]), tonumber(known[5] or '') or 0, tonumber(known[6] or '') or 0
      local level = tonumber(known[4] or '') or 2
      redis.call('HSET', state, 'stream', book.stream, 'entry', redis.call('XADD', book.stream, '*', 'job', found[n + 1]),
        'share', string.format('%d %d %d', tonumber(known[8] or '') or 0, level, size))
      accept(tenant, cost, size)
      park(book, tenant, job_id, level, now_ms(), known[7], ask('ZSCORE', prefix .. 'tenant:' .. known[3] .. ':parked', job_id))
      book.parked_levels[level] = book.parked_levels[level] - 1 -- that is counted as it was
    elseif is_terminal(known[1]) then
      bury(state, prefix .. 'tokens:' .. job_id, ttl_s)
    end
    redis.call('HDEL', messages, job_id)
  end
  if redis.call('EXISTS', messages) == 1 or redis.call('EXISTS', earlier .. 'worker') == 1 then return end
  local names = ask('ZRANGE', earlier .. 'jobs', 0, count - 1) or {}
  for _, name in ipairs(names) do
    local key = prefix .. 'tenant:' .. name
    for _, one in ipairs({key, key .. ':parked', key .. ':running'}) do redis.call('EXPIRE', one, IDLE_S) end
    redis.call('ZREM', earlier .. 'jobs', name)
  end
  if #names == count then return end
  for _, name in ipairs({'heads', 'ready', 'jobs', 'deadlines', 'clock'}) do redis.call('DEL', earlier .. name) end
end
