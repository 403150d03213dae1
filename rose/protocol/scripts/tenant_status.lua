-- Read how tenants stand: those that are named, those with the most jobs that have not ended, and those
-- whose next job has waited longest: who is forgotten has few jobs.
-- KEYS  load, limits of the tenants, running jobs of the tenants
-- ARGV  how many of either kind; names
-- Reply: {{tenants with jobs, parked jobs, running jobs, now ms, keys that hold something of another type,
--        "<ms> <key>" that was made anew for that reason last, or ""}, tenant, ...}; of each tenant {name, its
--        limits, {tokens, bytes, served}, parked jobs, running jobs, time of enqueueing of the next one or
--        nil, 1 if it has as many running as it may}
local load, limits, moved = unpack(KEYS)
local prefix = prefix_of(load)
local names, asked = {unpack(ARGV, 2)}, {}
for _, name in ipairs(names) do asked[name] = true end
local function add(found)
  for _, name in ipairs(found) do
    if not asked[name] then names[#names + 1], asked[name] = name, true end
  end
end
if ARGV[1] ~= '0' then
  add(ask('ZREVRANGE', prefix .. 'tenants:jobs', 0, ARGV[1] - 1) or {})
  add(ask('ZRANGE', prefix .. 'tenants:heads', 0, ARGV[1] - 1) or {})
end

local function look(name)
  local key = prefix .. 'tenant:' .. name
  local first = longest_waiting(key .. ':parked')
  local enqueued = first and redis.call('HMGET', prefix .. 'state:' .. first, 'enqueued_ms')[1]
  local ready = first and ask('ZSCORE', prefix .. 'tenants:ready', name)
  return {
    name, (ask('HMGET', limits, name) or {})[1] or false, ask('HMGET', key, 'tokens', 'bytes', 'served') or {'', '', ''},
    ask('ZCARD', key .. ':parked') or 0, ask('SCARD', key .. ':running') or 0, enqueued or false,
    first and not ready and 1 or 0,
  }
end

local parked = 0
for _, count in ipairs(redis.call('HMGET', load, 'parked_high', 'parked_normal', 'parked_low')) do
  parked = parked + math.max(0, tonumber(count or '0') or 0)
end
local foreign = {}
for _, name in ipairs({'ready', 'heads', 'jobs', 'deadlines'}) do
  if not ask('ZCARD', prefix .. 'tenants:' .. name) then foreign[#foreign + 1] = prefix .. 'tenants:' .. name end
end
if not ask('XLEN', moved) then foreign[#foreign + 1] = moved end
if not ask('HMGET', limits, ':passes') then foreign[#foreign + 1] = limits end
local mended = (ask('HMGET', prefix .. 'tenants:clock', 'mended') or {})[1] or ''
local all = {ask('ZCARD', prefix .. 'tenants:jobs') or 0, parked, ask('XLEN', moved) or 0, now_ms(), foreign, mended}
local reply = {all}
for _, name in ipairs(names) do reply[#reply + 1] = look(name) end
return reply
