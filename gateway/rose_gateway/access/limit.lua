#!lua flags=allow-oom
-- Take what a request needs from a key's limits: all of it, or nothing.
-- KEYS  rate (hash: requests, tokens: what is left of each; at: when, in ms), jobs (sorted set: unfinished
--       jobs, by when they were enqueued)
-- ARGV  requests a minute, tokens a minute, jobs at once: 0 for no limit; tokens that the request takes;
--       names of its jobs
-- Reply: what refused it ("", "requests", "tokens" or "jobs"), ms after which it may be asked again,
--        requests left, ms until all are back, tokens left, ms until all are back
local rate, jobs = KEYS[1], KEYS[2]
local per_minute = {requests = tonumber(ARGV[1]), tokens = tonumber(ARGV[2])}
local max_jobs = tonumber(ARGV[3])
local need = {requests = 1, tokens = tonumber(ARGV[4])}
local now = now_ms()

local held = redis.call('HMGET', rate, 'requests', 'tokens', 'at')
local since = math.max(0, now - (tonumber(held[3] or '') or 0))
-- A bucket fills within a minute, whatever was taken.
local function left(name, value)
  local most = per_minute[name]
  return math.min(most, (tonumber(value or '') or most) + since * most / 60000)
end
local have = {requests = left('requests', held[1]), tokens = left('tokens', held[2])}
local function ms_until(name, amount)
  if per_minute[name] == 0 then return 0 end
  return math.max(0, math.ceil((amount - have[name]) * 60000 / per_minute[name]))
end

local refused, wait = '', 0
for _, name in ipairs({'requests', 'tokens'}) do
  if refused == '' and per_minute[name] > 0 and have[name] < need[name] then
    refused, wait = name, ms_until(name, need[name])
  end
end
if refused == '' and max_jobs > 0 and redis.call('ZCARD', jobs) + #ARGV - 4 > max_jobs then
  refused, wait = 'jobs', 1000
end
if refused == '' then
  for name, most in pairs(per_minute) do
    if most > 0 then have[name] = have[name] - need[name] end
  end
  redis.call('HSET', rate, 'requests', have.requests, 'tokens', have.tokens, 'at', now)
  redis.call('PEXPIRE', rate, 61000)
  if max_jobs > 0 then
    for i = 5, #ARGV do redis.call('ZADD', jobs, now, ARGV[i]) end
    redis.call('PEXPIRE', jobs, 30 * 86400000)
  end
end
return {refused, wait, math.floor(have.requests), ms_until('requests', per_minute.requests),
  math.floor(have.tokens), ms_until('tokens', per_minute.tokens)}
