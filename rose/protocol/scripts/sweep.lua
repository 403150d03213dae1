#!lua flags=allow-oom
-- Look, a portion in each call, for what a foreign command, a restored backup or a failover may leave:
-- entries that were delivered and that no pending list holds go to `released`; jobs that workers have
-- begun and whose entries are gone are named, so that the caller ends them. A stream that takes no more
-- entries, since somebody has written one with the last possible id, is made anew once it is empty. Parked
-- jobs whose deadline has passed end, though no worker has a slot for them.
-- KEYS  running, load, job streams, stream of tenants' jobs
-- ARGV  group, consumer that owns released entries, entries to look at in each stream, bytes to read in
--       each, jobs to look at, ms for which a job is not looked at again, ttl s, event (failed at token 0, its
--       deadline has passed); per stream: the entry after which to look, or "" for its beginning
-- Reply: {entries that were released, {entry after which the next call looks, ...}, {{job id, take id,
--        tokens in its log, stream, entry}, ...}}
local running, load = KEYS[1], KEYS[2]
local group, released_to = ARGV[1], ARGV[2]
local max_entries, max_bytes, max_jobs, again_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local prefix = prefix_of(load)
local of_tenants, accounts = prefix .. 'jobs:tenants', tenant_accounts(prefix)

-- Whether a job waits for its tenant's turn. One that does and is nowhere in its tenant's order, since somebody has
-- deleted that, is parked anew.
local function waits(job)
  local job_id = job_id_in(job)
  local known = job_id and ask('HMGET', prefix .. 'state:' .. job_id, 'status', 'share', 'epoch', 'charged', 'tenant',
    'deadline_ms') or {}
  if not is_parked(unpack(known, 1, 4)) or not known[5] then return false end
  local tenant, _, level = accounts.open(known[5]), share_of(known[2])
  if not accounts.insist('ZSCORE', tenant.key, job_id) then
    park(accounts, tenant, job_id, level, now_ms(), known[6])
  end
  return true
end

-- Returns how many were released, and where to go on.
local function release_unowned(stream, after)
  local last = last_delivered(stream, group)
  if last and redis.call('XLEN', stream) == 0 then
    if by_name(redis.call('XINFO', 'STREAM', stream))['last-generated-id'] ~= LAST_ID then return 0, '' end
    -- Nothing can be enqueued there any more, and nothing is left. XSETID cannot set it back.
    redis.call('DEL', stream)
    redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
    return 0, ''
  end
  -- Of tenants' jobs none counts as delivered: a fetch claims them, in the order of their turns.
  if last and stream == of_tenants then last = LAST_ID end
  local entries, bytes, released = 0, 0, 0
  while last and after ~= last and entries < max_entries and bytes < max_bytes do
    -- One by one: together they may be large, and XRANGE has no way to leave out what they hold.
    local entry = redis.call('XRANGE', stream, after == '' and '-' or '(' .. after, last, 'COUNT', '1')[1]
    if not entry then return released, '' end
    local job = job_of(entry) or ''
    after, entries, bytes = entry[1], entries + 1, bytes + #job
    if #redis.call('XPENDING', stream, group, after, after, 1) == 0 and not (stream == of_tenants and waits(job)) then
      give_to(released_to, stream, group, {after}, 'FORCE')
      released = released + 1
    end
  end
  return released, after == last and '' or after
end

-- A job that runs without an entry: nobody would ever take it over or end it.
local function look_at(job_id, now)
  local state = prefix .. 'state:' .. job_id
  local known = ask('HMGET', state, 'status', 'epoch', 'tokens', 'stream', 'entry', 'take') or {}
  local status, epoch, tokens, stream, entry, take_id = known[1], known[2], known[3] or '0', unpack(known, 4, 6)
  local begun = status and not is_terminal(status) and is_count(epoch) and is_count(tokens) and stream and entry
  if not begun then
    redis.call('ZREM', running, job_id)
    return nil
  end
  redis.call('ZADD', running, now, job_id)
  if stands_at(KEYS[3], stream, entry) then return nil end
  if not take_id or not string.find(take_id, '^%w+$') then
    -- It was handed back, and who ends it must name a take.
    take_id = 'none'
    redis.call('HSET', state, 'take', take_id)
  end
  return {job_id, take_id, tokens, stream, entry}
end

local count, positions, lost = 0, {}, {}
for n = 3, #KEYS do
  local released
  released, positions[n - 2] = release_unowned(KEYS[n], ARGV[n + 6])
  count = count + released
end
local now = now_ms()
end_late(accounts, now, max_jobs, ARGV[8], ARGV[7])
give_back(load)
accounts.close(load)
forget_idle(accounts, now, max_jobs)
-- A time in the future is from before Redis' clock was set back.
for _, range in ipairs({{'-inf', now - again_ms}, {'(' .. now, '+inf'}}) do
  local due = ask('ZRANGEBYSCORE', running, range[1], range[2], 'LIMIT', 0, max_jobs) or {}
  for _, job_id in ipairs(due) do lost[#lost + 1] = look_at(job_id, now) end
end
return told({count, positions, lost})
