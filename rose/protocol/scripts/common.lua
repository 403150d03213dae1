-- The beginning of every script.
--
-- State of a job (hash state:ID):
--   status    queued | running | finished | failed | cancelled
--   stream    the job stream it waits in        entry   its entry there
--   epoch     fencing token, raised by every take and release
--   attempts  takes since the log last grew     taken_at  tokens in the log at the last take
--   tokens    tokens in the log                 cost    its share of load.tokens
--   worker    who took it last                  take    the id of that take
--   cancel    "1" once asked for                enqueued_ms, started_ms, ended_ms

-- On a cluster, scripts/__init__.py makes this 'SPUBLISH'.
local PUBLISH = 'PUBLISH'

local function is_terminal(status)
  return status == 'finished' or status == 'failed' or status == 'cancelled'
end

-- Whether a value is a number as these scripts write it. Anybody may write into Redis.
local function is_count(value)
  return value and #value < 16 and string.find(value, '^%d+$') ~= nil
end

-- The reply to a read; nil if the key is of a wrong type, which concerns one job alone. Any other
-- error (a missing right, no memory, a replica) concerns Redis and is raised.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE') then error(reply) end
end

-- The keys of a job differ in one word. No part of them may hold a colon.
local function channel_of(state)
  return (string.gsub(state, ':state:', ':channel:', 1))
end

-- Redis' clock: the one that every time in the protocol is read from.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function owns(stream, group, consumer, entry)
  local pending = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  return pending ~= nil and pending[2] == consumer
end

-- An item of XINFO's reply, which is a list of names and values in turn.
local function by_name(info)
  local values = {}
  for i = 1, #info, 2 do values[info[i]] = info[i + 1] end
  return values
end

-- The last entry that anybody has read; nil without a stream or a group.
local function last_delivered(stream, group)
  if redis.call('EXISTS', stream) == 0 then return nil end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local values = by_name(info)
    if values.name == group then return values['last-delivered-id'] end
  end
end

-- The entries that XREADGROUP read from one stream. Redis replies {{stream, entries}}; fakeredis
-- replies {stream, entries}.
local function entries_of(reply)
  return type(reply[1]) == 'table' and reply[1][2] or reply[2]
end

-- The field `job` of an entry: the last one if there are several, false if there is none.
local function job_of(entry)
  for i = #entry[2] - 1, 1, -2 do
    if entry[2][i] == 'job' then return entry[2][i + 1] end
  end
  return false
end

-- Whether there is an entry where a state says that its job stands. Looks only at streams of the
-- partition that the stream `own` is of, and only for valid ids.
local function stands_at(own, stream, entry)
  local partition = string.match(own, '^.*:')
  if string.sub(stream, 1, #partition) ~= partition then return false end
  local ms, number = string.match(entry, '^(%d+)-(%d+)$')
  if not ms or #ms > 19 or #number > 19 then return false end
  return #(ask('XRANGE', stream, entry, entry) or {}) == 1
end

local function acknowledge(stream, group, entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
end

-- Append an event to a log. False if somebody else has written there and the event does not fit.
local function add_event(tokens, id, event)
  local stored = redis.pcall('XADD', tokens, id, 'event', event)
  if not stored.err then return true end
  if string.find(stored.err, 'WRONGTYPE') or string.find(stored.err, 'smaller') then return false end
  error(stored)
end

-- End a job: log the terminal event, then give back what the job held. The caller acknowledges the
-- entry afterwards, never before.
local function end_job(state, tokens, load, status, event, now_ms, ttl_s)
  local known = redis.call('HMGET', state, 'tokens', 'cost')
  local last = (is_count(known[1]) and known[1] or '0') .. '-1'
  if not add_event(tokens, last, event) then
    -- The log is lost, but the job must end.
    redis.call('DEL', tokens)
    redis.call('XADD', tokens, last, 'event', event)
  end
  redis.call('HSET', state, 'status', status, 'ended_ms', now_ms)
  redis.call('EXPIRE', state, ttl_s)
  redis.call('EXPIRE', tokens, ttl_s)
  if is_count(known[2]) then redis.pcall('HINCRBY', load, 'tokens', -tonumber(known[2])) end
  redis.call(PUBLISH, channel_of(state), event)
end
