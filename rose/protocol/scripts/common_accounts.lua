-- What becomes of a tenant's account with its jobs. Behind common_tenants.lua.

-- The numbers of the priorities that pass between tenants, also where no tenant has been opened.
local function passing_levels(accounts)
  accounts.passing = accounts.passing or (ask('HMGET', accounts.prefix .. 'tenants:limits', ':passes') or {})[1] or ''
  return accounts.passing
end

-- A job counts among those that are parked no more. What becomes of its tenant's order, the caller says.
local function uncount(accounts, tenant, job_id, level, has_deadline)
  tenant.parked, tenant.dirty = tenant.parked - 1, true
  local levels = accounts.parked_levels
  levels[level] = levels[level] - 1
  if has_deadline then gather(accounts, 'undue', job_id) end
end

-- A job is parked no more, wherever it stands in its tenant's order.
local function release_parked(accounts, tenant, job_id, level, has_deadline)
  uncount(accounts, tenant, job_id, level, has_deadline)
  gather(tenant, 'goes', job_id)
  tenant.look = true
end

-- A parked job is given to a worker. Where its tenant stands then, the caller knows. The clock goes by the virtual
-- time of who was given a job last, without what was charged in advance: who is put where others are with their
-- advances would wait for all that they are given back. Jobs that pass do not move the clock: their tenant may be
-- far ahead of all others.
local function give_parked(accounts, tenant, prompt, level, job_id, has_deadline)
  uncount(accounts, tenant, job_id, level, has_deadline)
  local weight, running, vtime = tenant.weight, tenant.running, tenant.vtime
  if tenant.due >= 0 then
    local all, reached = accounts.clock(), vtime - running * ADVANCE / weight
    if reached > all.vtime then all.vtime, all.changed = reached, true end
  end
  tenant.running, tenant.vtime = running + 1, vtime + (prompt + ADVANCE) / weight
end

-- Jobs of a tenant have ended: what was charged in advance makes room for what they used. `ended`: how many jobs,
-- how many of them workers held and what these were charged, their shares, and of all of them together cost, bytes
-- and logged tokens. Nobody calls it twice for a job: whoever ends one sees that it has not ended.
local function settle_tenant(accounts, name, ended)
  local tenant, logged = accounts.open(name), ended.logged
  if ended.held > 0 then
    tenant.running = math.max(0, tenant.running - ended.held)
    tenant.vtime = tenant.vtime + (logged - ended.charged) / tenant.weight
  end
  tenant.jobs, tenant.served, tenant.dirty = math.max(0, tenant.jobs - ended.jobs), tenant.served + logged, true
  tenant.tokens, tenant.bytes = math.max(0, tenant.tokens - ended.cost), math.max(0, tenant.bytes - ended.bytes)
  if tenant.max_allowance and tenant.allowance then
    local left = tenant.allowance + ended.cost - logged
    for _, share in ipairs(ended.shares) do left = left - share_of(share) end
    tenant.allowance = math.min(tenant.max_allowance, left)
  end
end

-- One has ended; without `charged` no worker held it.
local function settle(accounts, name, share, cost, bytes, charged, logged)
  if not name or not share then return end
  settle_tenant(accounts, name, {jobs = 1, held = charged and 1 or 0, charged = charged, shares = {share},
    cost = tonumber(cost or '') or 0, bytes = tonumber(bytes or '') or 0, logged = logged})
end

-- The same where the caller knows nothing of the job.
local function settle_state(accounts, state, logged)
  local known = ask('HMGET', state, 'tenant', 'share', 'cost', 'bytes', 'charged', 'epoch') or {}
  local charged = tonumber(known[5] or '') or known[6] ~= '0' and ADVANCE
  settle(accounts, known[1], known[2], known[3], known[4], charged, logged)
end

-- A job of this tenant that runs has `logged` tokens. If they are more than were charged for it, so are
-- some more: in portions, so that it is seldom.
local function charge_more(accounts, state, name, charged, logged)
  local MIN_PORTION = 16
  local tenant, upto = accounts.open(name), logged + math.max(MIN_PORTION, math.floor(logged / 4))
  tenant.vtime, tenant.dirty = tenant.vtime + (upto - charged) / tenant.weight, true
  redis.call('HSET', state, 'charged', upto)
end

-- The key that was made anew in the last minute, and when: "" for none.
local function mended_lately(accounts, now)
  local mended = accounts.clock().mended
  local at = string.match(mended, '^%d+')
  return at and now - at < 60000 and mended or ''
end
