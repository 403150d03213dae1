-- Read how tenants stand: those that are named, those with the most jobs that have not ended, and those
-- whose next job has waited longest: who is forgotten has few jobs.
-- KEYS  load, limits of the tenants, stream of their jobs
-- ARGV  group, how many of either kind; names
-- Reply: {{tenants with jobs, parked jobs, running jobs, now ms, keys that hold something of another type,
--        "<ms> <key>" that was made anew for that reason last, or ""}, tenant, ...}; of each tenant {name, its
--        limits, {tokens, bytes, served}, parked jobs, running jobs, time of enqueueing of the next one or
--        nil, 1 if it has as many running as it may}
local load, limits, of_tenants = unpack(KEYS)
local group, most = ARGV[1], tonumber(ARGV[2])
local prefix = prefix_of(load)
local shares = prefix .. 'shares:'
local names, asked = {unpack(ARGV, 3)}, {}
for _, name in ipairs(names) do asked[name] = true end
local function add(found)
  for _, name in ipairs(found) do
    if not asked[name] then names[#names + 1], asked[name] = name, true end
  end
end
if most > 0 then
  add(ask('ZREVRANGEBYSCORE', shares .. 'jobs', '+inf', 1, 'LIMIT', 0, most) or {})
  add(ask('ZRANGE', shares .. 'heads', 0, most - 1) or {})
end

local function look(name)
  local parked, record = shares .. 'parked:' .. name, (ask('HMGET', shares .. 'tenants', name) or {})[1]
  local tokens, bytes, served, running = string.match(record or '', '^%S+ %S+ (%S+) (%S+) (%S+) %S+ (%S+)')
  local first = longest_waiting(parked)
  local enqueued = first and redis.call('HMGET', prefix .. 'state:' .. first, 'enqueued_ms')[1]
  local ready = first and ask('ZSCORE', shares .. 'ready', name)
  return {
    name, (ask('HMGET', limits, name) or {})[1] or false, {tokens or '', bytes or '', served or ''},
    ask('ZCARD', parked) or 0, tonumber(running or '') or 0, enqueued or false, first and not ready and 1 or 0,
  }
end

local parked = 0
for _, count in ipairs(redis.call('HMGET', load, 'parked_high', 'parked_normal', 'parked_low')) do
  parked = parked + math.max(0, tonumber(count or '0') or 0)
end
local foreign = {}
for _, name in ipairs({'ready', 'heads', 'jobs', 'deadlines'}) do
  if not ask('ZCARD', shares .. name) then foreign[#foreign + 1] = shares .. name end
end
if not ask('HMGET', shares .. 'tenants', '') then foreign[#foreign + 1] = shares .. 'tenants' end
if not ask('XLEN', of_tenants) then foreign[#foreign + 1] = of_tenants end
if not ask('HMGET', limits, ':passes') then foreign[#foreign + 1] = limits end
local mended = (ask('HMGET', shares .. 'clock', 'mended') or {})[1] or ''
local pending = redis.pcall('XPENDING', of_tenants, group)
local all = {ask('ZCOUNT', shares .. 'jobs', 1, '+inf') or 0, parked, pending[1] or 0, now_ms(), foreign, mended}
local reply = {all}
for _, name in ipairs(names) do reply[#reply + 1] = look(name) end
return reply
