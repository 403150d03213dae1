-- Shared by every script: it is put in front of each of them.
--
-- State of a job (hash state:ID):
--   status    queued | running | finished | failed | cancelled
--   stream    the job stream it waits in        entry   its entry there
--   epoch     fencing token, raised by every take and release
--   attempts  takes since the log last grew     taken_at  tokens in the log at the last take
--   tokens    tokens in the log                 cost    its share of load.tokens
--   cancel    "1" once asked for                worker, enqueued_ms, started_ms, ended_ms

local function is_terminal(status)
  return status == 'finished' or status == 'failed' or status == 'cancelled'
end

-- The keys of a job differ in one word, and no part of them may hold a colon.
local function channel_of(state)
  return (string.gsub(state, ':state:', ':channel:', 1))
end

local function owns(stream, group, consumer, entry)
  local pending = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  return pending ~= nil and pending[2] == consumer
end

local function acknowledge(stream, group, entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
end

-- The one way for a job to end: terminal event last in the log, then what it held is given back.
-- The caller acknowledges afterwards, never before.
local function end_job(state, tokens, load, status, event, now_ms, ttl_s)
  local known = redis.call('HMGET', state, 'tokens', 'cost')
  redis.call('XADD', tokens, (known[1] or '0') .. '-1', 'event', event)
  redis.call('HSET', state, 'status', status, 'ended_ms', now_ms)
  redis.call('EXPIRE', state, ttl_s)
  redis.call('EXPIRE', tokens, ttl_s)
  if known[2] then redis.call('HINCRBY', load, 'tokens', -tonumber(known[2])) end
  redis.call('PUBLISH', channel_of(state), event)
end
