#!lua flags=allow-oom
-- Give a tenant another name: its limits, what it uses, and its jobs, a portion in each call, until nothing
-- is left of the old name. Each call leaves every job with one of the two names, and counted there. A job
-- that comes meanwhile with the old name is found by a later call.
-- KEYS  load, limits of the tenants        ARGV  old name, new name, most jobs to look at
-- Reply: {outcome, how many jobs have another name now}
--        MORE      call again
--        DONE      nothing is left of the old name
--        CONFLICT  both have limits, and not the same; nothing has changed
local load, limits, old_name, new_name, most = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local prefix = prefix_of(load)
local old, new = prefix .. 'tenant:' .. old_name, prefix .. 'tenant:' .. new_name

local texts = redis.call('HMGET', limits, old_name, new_name)
if texts[1] and texts[2] and texts[1] ~= texts[2] then return {'CONFLICT', 0} end
-- Both have them until the end, so that no job that comes meanwhile goes without.
if texts[1] and not texts[2] then redis.call('HSET', limits, new_name, texts[1]) end

local function numbers(key, ...)
  local values = redis.call('HMGET', key, ...)
  for i, value in ipairs(values) do values[i] = tonumber(value or '') or 0 end
  return values
end

-- Of the jobs that this call looks at.
local tokens, bytes, count = 0, 0, 0

local function rename(job_id)
  local state = prefix .. 'state:' .. job_id
  local known = ask('HMGET', state, 'tenant', 'cost', 'bytes', 'counted') or {}
  count = count + 1
  if known[1] ~= old_name then return end
  redis.call('HSET', state, 'tenant', new_name)
  if known[4] ~= '1' then return end
  tokens, bytes = tokens + (tonumber(known[2] or '') or 0), bytes + (tonumber(known[3] or '') or 0)
end

local parked = redis.call('ZRANGE', old .. ':parked', 0, most - 1, 'WITHSCORES')
for i = 1, #parked, 2 do
  rename(parked[i])
  redis.call('ZREM', old .. ':parked', parked[i])
  redis.call('ZADD', new .. ':parked', parked[i + 1], parked[i])
end
for _, job_id in ipairs(redis.call('SRANDMEMBER', old .. ':running', math.max(0, most - count))) do
  rename(job_id)
  redis.call('SREM', old .. ':running', job_id)
  redis.call('SADD', new .. ':running', job_id)
end

local before, after = numbers(old, 'vtime', 'last', 'tokens', 'bytes'), numbers(new, 'vtime', 'last', 'tokens', 'bytes')
local known = redis.call('HMGET', old, 'vtime')[1]
if known then
  redis.call('HSET', old, 'tokens', math.max(0, before[3] - tokens), 'bytes', math.max(0, before[4] - bytes))
  redis.call('HSET', new, 'vtime', math.max(before[1], after[1]), 'last', string.format('%.0f', math.max(before[2], after[2])),
    'tokens', after[3] + tokens, 'bytes', after[4] + bytes)
  -- What is left of the minute.
  local left, others = redis.call('HMGET', old, 'requests', 'allowance', 'at'), redis.call('HMGET', new, 'at')
  if left[3] and not others[1] then
    redis.call('HSET', new, 'requests', left[1] or '', 'allowance', left[2] or '', 'at', left[3])
  end
end
if count > 0 then
  redis.call('ZINCRBY', prefix .. 'tenants:jobs', -count, old_name)
  redis.call('ZINCRBY', prefix .. 'tenants:jobs', count, new_name)
end

local done = redis.call('ZCARD', old .. ':parked') + redis.call('SCARD', old .. ':running') == 0
if done then
  if known then
    redis.call('HSET', new, 'served', numbers(new, 'served')[1] + numbers(old, 'served')[1])
    redis.call('DEL', old)
  end
  redis.call('ZREM', prefix .. 'tenants:jobs', old_name)
  redis.call('HDEL', limits, old_name)
end
if redis.call('ZSCORE', prefix .. 'tenants:jobs', new_name) then
  redis.call('PERSIST', new)
elseif known then
  redis.call('EXPIRE', new, IDLE_S)
end

-- Where both stand now, and the bell if there is something to do.
local tenants = tenant_book(prefix)
for _, name in ipairs({old_name, new_name}) do tenants.open(name).changed = true end
tenants.close(load)
return {done and 'DONE' or 'MORE', count}
