#!lua flags=allow-oom
-- Stop a job. A job that no worker has begun on ends at once. Its entry stays until the next take
-- acknowledges it, since XDEL of an undelivered entry would break the group's lag. Until then nothing of
-- the job expires: without its state that take would begin it again.
-- KEYS  state, tokens, load, control
-- ARGV  what to publish on `control`, event (cancelled at token 0)
-- Reply: UNKNOWN, ENDED, CANCELLED (it has ended), REQUESTED (its worker will end it)
local state, tokens, load, control = unpack(KEYS)
local message, event = unpack(ARGV)

local known = redis.call('HMGET', state, 'status', 'tokens', 'bytes')
if not known[1] then return 'UNKNOWN' end
if is_terminal(known[1]) then return 'ENDED' end
redis.call('HSET', state, 'cancel', '1')
if known[1] == 'queued' and known[2] == '0' then
  end_job(state, tokens, 'cancelled', event, string.format('%d', now_ms()))
  give_back(load)
  -- The queue's limits count entries, but not those of cancelled jobs.
  local bytes = is_count(known[3]) and known[3] or '0'
  redis.call('HSET', state, 'tombstone', bytes)
  add_to(load, 'cancelled', 1)
  add_to(load, 'cancelled_bytes', tonumber(bytes))
  return 'CANCELLED'
end
redis.call(PUBLISH, control, message)
return 'REQUESTED'
