-- Jobs of tenants on their way in, and out again before a worker was given them. Behind common_tenants.lua.

-- End a job that is parked. Returns false if it is not: then a worker was given it, or no submit has parked it.
local function end_parked(accounts, state, status, event, now, ttl_s)
  local known = ask('HMGET', state, 'status', 'share', 'epoch', 'charged', 'tenant', 'entry', 'deadline_ms', 'cost',
    'bytes') or {}
  if not is_parked(unpack(known, 1, 4)) or not known[5] or not known[6] then return false end
  local _, level = share_of(known[2])
  release_parked(accounts, accounts.open(known[5]), id_of(state), level, known[7])
  end_job(state, (string.gsub(state, ':state:', ':tokens:', 1)), held_by(state), status, event,
    string.format('%d', now), ttl_s)
  ask('XDEL', accounts.stream, known[6])
  settle(accounts, known[5], known[2], known[8], known[9], nil, 0)
  return true
end

-- End parked jobs whose deadline has passed, at most `count`.
local function end_late(accounts, now, count, event, ttl_s)
  local deadlines = accounts.prefix .. 'shares:deadlines'
  local due = accounts.insist('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, count)
  for _, job_id in ipairs(due) do
    if not end_parked(accounts, accounts.prefix .. 'state:' .. job_id, 'failed', event, now, ttl_s) then
      redis.call('ZREM', deadlines, job_id)
    end
  end
end

-- Forget tenants that have had no jobs for long.
local function forget_idle(accounts, now, count)
  local since, jobs = math.floor(now / 1000) - IDLE_S, accounts.prefix .. 'shares:jobs'
  local idle = since > 0 and accounts.insist('ZRANGEBYSCORE', jobs, string.format('(%d', -since), '(0', 'LIMIT', 0, count) or {}
  if #idle == 0 then return end
  redis.call('HDEL', accounts.prefix .. 'shares:tenants', unpack(idle))
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
local function park(accounts, tenant, job_id, level, now, deadline_ms, due)
  due = due and tonumber(due)
  if not due then
    accounts.ageing = accounts.ageing or ageing_of(redis.call('HMGET', accounts.prefix .. 'model', 'ageing_ms')[1])
    due, tenant.last = next_due(tenant.last, level, now, accounts.ageing)
    if accounts.passing ~= '' and string.find(accounts.passing, level, 1, true) then due = due - PASSING end
  end
  gather(tenant, 'comes', string.format('%d', due), job_id)
  tenant.parked, tenant.dirty = tenant.parked + 1, true
  if not tenant.due or due < tenant.due then tenant.due = due end
  if deadline_ms then accounts.insist('ZADD', accounts.prefix .. 'shares:deadlines', deadline_ms, job_id) end
  local levels = accounts.parked_levels
  levels[level], accounts.heard = levels[level] + 1, true
end
