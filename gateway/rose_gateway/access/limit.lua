#!lua flags=allow-oom
-- Take what a request needs from a key's limits: all of it, or nothing.
-- KEYS  rate (hash: requests, tokens, reads: what is left of each; at: when, in ms), jobs (sorted set: unfinished
--       jobs, by when they were enqueued)
-- ARGV  requests, tokens, reads a minute, jobs at once: 0 for no limit; requests, tokens, reads that it takes;
--       names of its jobs
-- Reply: what refused it ("", "requests", "tokens", "reads" or "jobs"), ms after which it may be asked again,
--        requests left, ms until all are back, tokens left, ms until all are back
local rate, jobs = KEYS[1], KEYS[2]
local NAMES = {'requests', 'tokens', 'reads'}
local max_jobs = tonumber(ARGV[4])
local now = now_ms()

local held = redis.call('HMGET', rate, 'at', unpack(NAMES))
local since = math.max(0, now - (tonumber(held[1] or '') or 0))
local per_minute, need, have = {}, {}, {}
for i, name in ipairs(NAMES) do
  local most = tonumber(ARGV[i])
  per_minute[name], need[name] = most, tonumber(ARGV[4 + i])
  -- A bucket fills within a minute, whatever was taken.
  have[name] = math.min(most, (tonumber(held[1 + i] or '') or most) + since * most / 60000)
end
local function ms_until(name, amount)
  if per_minute[name] == 0 then return 0 end
  return math.max(0, math.ceil((amount - have[name]) * 60000 / per_minute[name]))
end

local refused, wait = '', 0
for _, name in ipairs(NAMES) do
  if refused == '' and per_minute[name] > 0 and have[name] < need[name] then
    refused, wait = name, ms_until(name, need[name])
  end
end
if refused == '' and max_jobs > 0 and #ARGV > 7 and redis.call('ZCARD', jobs) + #ARGV - 7 > max_jobs then
  refused, wait = 'jobs', 1000
end
if refused == '' then
  for name, most in pairs(per_minute) do
    if most > 0 then have[name] = have[name] - need[name] end
  end
  redis.call('HSET', rate, 'requests', have.requests, 'tokens', have.tokens, 'reads', have.reads, 'at', now)
  redis.call('PEXPIRE', rate, 61000)
  if max_jobs > 0 and #ARGV > 7 then
    for i = 8, #ARGV do redis.call('ZADD', jobs, now, ARGV[i]) end
    redis.call('PEXPIRE', jobs, 30 * 86400000)
  end
end
return {refused, wait, math.floor(have.requests), ms_until('requests', per_minute.requests),
  math.floor(have.tokens), ms_until('tokens', per_minute.tokens)}
