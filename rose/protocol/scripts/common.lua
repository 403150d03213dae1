-- What several scripts use: each of them gets those declarations that it names. One begins with `local` in
-- the first column.
--
-- State of a job (hash state:ID):
--   status    queued | running | finished | failed | cancelled
--   stream    the job stream it waits in        entry   its entry there
--   epoch     how many takes there were
--   attempts  takes since the log last grew     taken_at  tokens in the log at the last take
--   tokens    tokens in the log                 cost    its share of load.tokens
--   worker    who took it last                  take    the id of that take, by which an append knows it
--   writers   who wrote it from which token on: lines of "<tokens before> <worker>"
--   cancel    "1" once asked for                bytes   its share of load.bytes
--   key       its idempotency key               deadline_ms, enqueued_ms, started_ms, ended_ms
--   tombstone bytes of its entry, once it was cancelled while it waited
--   owner     whose job it is                   record  its submitter's, for nobody else to read
--   deleted   "1" once asked for: it goes soon after its end; before that it has `cancel`, too
--   tenant    on whose account it runs; see common_tenants.lua
--   share     "<estimated tokens of its prompt> <level of its priority, from 1> <bytes>": only in the stream of
--             tenants' jobs, where it counts for its tenant until its end
--   charged   tokens of its answer that were charged to the tenant, if they are not ADVANCE: it is not parked

-- scripts/__init__.py makes this 'SPUBLISH' for a cluster.
local PUBLISH = 'PUBLISH'

-- The number of the database, which is a part of the names of channels, since they are those of the whole server.
-- scripts/__init__.py makes it that of the caller's URL.
local DATABASE = '0'

-- A user who may write and not publish is refused in mid-script. The channel is only the wake-up, so the script
-- finishes what it has begun. Only then it says that it was refused, by `told`.
local unpublished

local function publish(channel, message)
  local heard_by = redis.pcall(PUBLISH, channel, message)
  if type(heard_by) == 'table' then unpublished = heard_by end
end

-- The reply of a script that may have published. It writes nothing after this.
local function told(reply)
  if unpublished then error(unpublished) end
  return reply
end

local function is_terminal(status)
  return status == 'finished' or status == 'failed' or status == 'cancelled'
end

-- Whether a value is a number as these scripts write it. Anybody may write into Redis.
local function is_count(value)
  return value and #value < 16 and string.find(value, '^%d+$') ~= nil
end

-- A number as Redis reads it. Redis would make a text of it that is as long as a float needs, which
-- costs several times as much.
local function text(number)
  if number % 1 == 0 and number > -2 ^ 53 and number < 2 ^ 53 then return string.format('%d', number) end
  return number
end

-- The reply to a read; nil if the key is of a wrong type, which concerns one job alone. Any other
-- error (a missing right, no memory, a replica) concerns Redis and is raised.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE') then error(reply) end
end

-- One field of a hash; nil or false without it.
local function field_of(key, field)
  return (ask('HMGET', key, field) or {})[1]
end

-- The keys of a job differ in one word. No part of them may hold a colon.
-- These three are called for each job: finding a plain text costs a fraction of matching a pattern.
local function channel_of(state)
  local first, last = string.find(state, ':state:', 1, true)
  return string.sub(state, 1, first) .. 'channel:' .. DATABASE .. string.sub(state, last)
end

-- Redis' clock: the one that every time in the protocol is read from.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What the names of all keys of a partition begin with.
local function prefix_of(key)
  local _, last = string.find(key, '}:', 1, true)
  return string.sub(key, 1, last)
end

local function id_of(state)
  local _, last = string.find(state, ':state:', 1, true)
  return string.sub(state, last + 1)
end

-- What a job that has not ended takes in Redis: itself, and about this much for its state.
local function bytes_of(job)
  return #job + 1024
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

-- The last entry that anybody has read, and how many are pending; nil without a stream or a group.
local function last_delivered(stream, group)
  if redis.call('EXISTS', stream) == 0 then return nil end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local values = by_name(info)
    if values.name == group then return values['last-delivered-id'], values.pending end
  end
end

-- No entry can come after one with this id, which anybody may write.
local LAST_ID = '18446744073709551615-18446744073709551615'

-- The first entry after `last`; nil if there is none.
local function entry_after(stream, last)
  if last == LAST_ID then return nil end -- XRANGE would call it an error
  return redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', '1')[1]
end

-- The entries that XREADGROUP read from one stream. Redis replies {{stream, entries}}; fakeredis
-- replies {stream, entries}.
local function entries_of(reply)
  return type(reply[1]) == 'table' and reply[1][2] or reply[2]
end

-- The field `job` of an entry: the last one if there are several, false if there is none.
local function job_of(entry)
  local fields = entry[2]
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'job' then return fields[i + 1] end
  end
  return false
end

-- The id in a job as clients of this project write it: a map that begins with it.
local function job_id_in(job)
  local MAX_JOB_ID = 80
  local length, at = string.match(job, '^[\128-\143]\162id([\160-\191])()')
  length = length and string.byte(length) - 160
  if not length then
    length, at = string.match(job, '^[\128-\143]\162id\217(.)()')
    length = length and string.byte(length)
  end
  if not length or length > MAX_JOB_ID then return nil end
  local job_id = string.sub(job, at, at + length - 1)
  return #job_id == length and string.match(job_id, '^%w[%w_.-]*$')
end

-- Whether a state names a stream of the partition that the stream `own` is of, and a valid id.
local function names_entry(own, stream, entry)
  local partition = string.match(own, '^.*:')
  if string.sub(stream, 1, #partition) ~= partition then return false end
  local ms, number = string.match(entry, '^(%d+)-(%d+)$')
  return ms ~= nil and #ms <= 19 and #number <= 19
end

-- Whether there is an entry where a state says that its job stands.
local function stands_at(own, stream, entry)
  return names_entry(own, stream, entry) and #(ask('XRANGE', stream, entry, entry) or {}) == 1
end

-- `...`: entries. Of many at once Redis looks for the stream's first entry once, not for each.
local function acknowledge(stream, group, ...)
  redis.call('XACK', stream, group, ...)
  redis.call('XDEL', stream, ...)
end

-- The ids of XPENDING's reply.
local function ids_of(pending)
  local ids = {}
  for n, entry in ipairs(pending) do ids[n] = entry[1] end
  return ids
end

-- So long an entry seems to have been idle that has made room for one of a higher priority: longer than others that
-- were released.
local MADE_ROOM_MS = 2 * 86400000

-- Give entries to the consumer that owns released ones, where the next fetch of any worker finds them.
-- An idle time of a day lets a worker of any version and any lease take them. An entry that somebody has
-- deleted is dropped from the pending list. `...`: FORCE, for entries that no pending list holds.
local function give_to(released, stream, group, ids, ...)
  if #ids == 0 then return end
  local words = {unpack(ids)}
  for _, word in ipairs({'IDLE', 86400000, 'JUSTID', ...}) do words[#words + 1] = word end
  redis.call('XCLAIM', stream, group, released, 0, unpack(words))
end

-- Append an event to a log. False if somebody else has written there and the event does not fit.
local function add_event(tokens, id, event)
  local stored = redis.pcall('XADD', tokens, id, 'event', event)
  if not stored.err then return true end
  if string.find(stored.err, 'WRONGTYPE') or string.find(stored.err, 'smaller') then return false end
  error(stored)
end

-- The name of a job's idempotency key, from the field `key` of its state; nil if it has none.
local function key_name(state, key)
  if not key or not string.find(key, '^[%w_.:-]+$') then return nil end
  return (string.gsub(state, ':state:.*$', ':idempotency:')) .. key
end

-- What is left of a deleted job outlives its end by so much, so that a repeated call of its worker and a
-- subscriber who has missed the event still find that it has ended.
local DELETED_S = 60

-- A job's state, its log and its idempotency key expire together. The key may stand for another job by
-- now.
local function expire(state, tokens, key, ttl_s, deleted)
  if deleted then ttl_s = math.min(ttl_s, DELETED_S) end
  redis.call('EXPIRE', state, ttl_s)
  redis.call('EXPIRE', tokens, ttl_s)
  local name = key_name(state, key)
  if name and ask('GET', name) == id_of(state) then redis.call('EXPIRE', name, ttl_s) end
end

-- If somebody else has written into the hash `load`, the limits are wrong, but no job is.
local function add_to(load, field, count)
  if count ~= 0 then redis.pcall('HINCRBY', load, field, string.format('%d', count)) end
end

-- What the jobs that this call has ended give back to `load`.
local given_back = {tokens = 0, bytes = 0}

local function give_back(load)
  add_to(load, 'tokens', -given_back.tokens)
  add_to(load, 'bytes', -given_back.bytes)
end

-- What `end_job` has to know of a job.
local function held_by(state)
  return redis.call('HMGET', state, 'tokens', 'cost', 'bytes', 'key', 'deleted')
end

-- End a job: log the terminal event, then note what the job held. The caller acknowledges the entry
-- afterwards, never before, and calls `give_back` once for all jobs. Without `ttl_s` nothing of the job
-- expires yet. `...`: other fields of its state that change. Returns what it gives back: tokens, bytes.
local function end_job(state, tokens, held, status, event, now, ttl_s, ...)
  local logged, cost, bytes, key, deleted = unpack(held, 1, 5)
  local last = (is_count(logged) and logged or '0') .. '-1'
  if not add_event(tokens, last, event) then
    -- The log is lost, but the job must end.
    redis.call('DEL', tokens)
    redis.call('XADD', tokens, last, 'event', event)
  end
  redis.call('HSET', state, 'status', status, 'ended_ms', now, ...)
  if ttl_s then expire(state, tokens, key, ttl_s, deleted) end
  cost, bytes = is_count(cost) and cost + 0 or 0, is_count(bytes) and bytes + 0 or 0
  given_back.tokens, given_back.bytes = given_back.tokens + cost, given_back.bytes + bytes
  publish(channel_of(state), event)
  return cost, bytes
end

-- The entry of a job that has ended goes: its state, log and key may expire now. If the job was
-- cancelled while it waited, its entry does not fill the stream any more.
local function bury(state, tokens, ttl_s)
  local known = redis.call('HMGET', state, 'key', 'tombstone', 'deleted')
  expire(state, tokens, known[1], ttl_s, known[3])
  if is_count(known[2]) then
    local load = string.gsub(state, ':state:.*$', ':load')
    redis.call('HDEL', state, 'tombstone')
    add_to(load, 'cancelled', -1)
    add_to(load, 'cancelled_bytes', -tonumber(known[2]))
  end
end

-- Idle workers take turns: the one that `listener` names listens for new jobs, the others wait for a
-- member of the sorted set `turn`. `waiting` exists while there are such others.

-- How long the name of a listener stands without a word from it. Idle workers look more often.
local LISTENER_MS = 1000
--- A worker that says nothing for so long is dead.
local ALIVE_MS = 15000
local WAITING_MS = 3000

-- The other worker that listens now, if there is one. A longer time to live is from before Redis' clock
-- was set back.
local function other_listener(listener, consumer)
  local holder = ask('GET', listener)
  if not holder or holder == consumer then return nil end
  local left = redis.call('PTTL', listener)
  return left > 0 and left <= LISTENER_MS and holder or nil
end

local function wait_for_turn(waiting)
  local left = redis.call('PTTL', waiting)
  if left < WAITING_MS / 2 or left > WAITING_MS then redis.call('SET', waiting, '1', 'PX', WAITING_MS) end
end

-- Whoever has heard of jobs lets the next one listen before it works. If nobody waits it listens on
-- itself, as soon as it can, but not if it `leaves`. Returns whether it does.
local function hand_on(listener, turn, waiting, consumer, leaves)
  if other_listener(listener, consumer) then return false end
  local others = redis.call('EXISTS', waiting) == 1
  if others or leaves then
    redis.call('DEL', listener)
    if others then redis.call('ZADD', turn, 0, 'next') end
    return false
  end
  redis.call('SET', listener, consumer, 'PX', LISTENER_MS)
  return true
end
