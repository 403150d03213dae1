#!lua flags=allow-oom
-- Give a tenant another name: its limits, what it uses, and its jobs, a portion in each call, until nothing
-- is left of the old name. Each call leaves every job with one of the two names, and counted there. A job
-- that comes meanwhile with the old name is found by a later call.
-- KEYS  load, limits of the tenants, stream of their jobs
-- ARGV  group, old name, new name, most jobs to give another name
-- Reply: {outcome, how many jobs have another name now}
--        MORE      call again
--        DONE      nothing is left of the old name
--        CONFLICT  both have limits, and not the same; nothing has changed
local load, limits, of_tenants = unpack(KEYS)
local group, old_name, new_name, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local texts = redis.call('HMGET', limits, old_name, new_name)
if texts[1] and texts[2] and texts[1] ~= texts[2] then return {'CONFLICT', 0} end
-- Both have them until the end, so that no job that comes meanwhile goes without.
if texts[1] and not texts[2] then redis.call('HSET', limits, new_name, texts[1]) end

local prefix = prefix_of(load)
local accounts = tenant_accounts(prefix)
local old, new = accounts.open(old_name), accounts.open(new_name)
old.dirty, new.dirty, old.look, new.look = true, true, true, true
new.vtime, new.last = math.max(old.vtime, new.vtime), math.max(old.last, new.last)
-- What is left of the minute.
if old.at and not new.at then new.requests, new.allowance, new.at = old.requests, old.allowance, old.at end
local count = 0

-- A job counts for the new name from now on.
local function rename(state)
  local known = ask('HMGET', state, 'tenant', 'cost', 'bytes', 'share', 'charged', 'epoch', 'status') or {}
  if known[1] ~= old_name then return end
  redis.call('HSET', state, 'tenant', new_name)
  count = count + 1
  if not known[4] or is_terminal(known[7]) then return end
  local tokens, bytes = tonumber(known[2] or '') or 0, tonumber(known[3] or '') or 0
  local running = is_parked(known[7], known[4], known[6], known[5]) and 0 or 1
  for tenant, sign in pairs({[old] = -1, [new] = 1}) do
    tenant.jobs, tenant.running = math.max(0, tenant.jobs + sign), math.max(0, tenant.running + sign * running)
    tenant.tokens, tenant.bytes = math.max(0, tenant.tokens + sign * tokens), math.max(0, tenant.bytes + sign * bytes)
  end
end

local parked = redis.call('ZRANGE', old.key, 0, most - 1, 'WITHSCORES')
for i = 1, #parked, 2 do
  rename(prefix .. 'state:' .. parked[i])
  gather(old, 'goes', parked[i])
  gather(new, 'comes', parked[i + 1], parked[i])
  old.parked, new.parked = old.parked - 1, new.parked + 1
end

-- Those that workers have been given. Nobody has more than a few, and those of others are among them.
local start, pending = '-', redis.pcall('XPENDING', of_tenants, group)
while not pending.err and count < most do
  pending = redis.call('XPENDING', of_tenants, group, start, '+', 100)
  if #pending == 0 then break end
  for _, one in ipairs(pending) do
    local entry = redis.call('XRANGE', of_tenants, one[1], one[1])[1]
    local job_id = entry and job_id_in(job_of(entry) or '')
    if job_id and count < most then rename(prefix .. 'state:' .. job_id) end
  end
  start = '(' .. pending[#pending][1]
end

local done = #parked < 2 * most and count < most
if done then
  new.served = new.served + old.served
  old.served, old.jobs, old.running, old.tokens, old.bytes = 0, 0, 0, 0, 0
end
accounts.close(load)
if done then
  redis.call('HDEL', prefix .. 'shares:tenants', old_name)
  redis.call('ZREM', prefix .. 'shares:jobs', old_name)
  redis.call('HDEL', limits, old_name)
end
return {done and 'DONE' or 'MORE', count}
