#!lua flags=allow-oom
-- Give the entries of silent workers to `released`, where the next fetch of any worker finds them before
-- it reads new ones. Every worker calls this; one call an interval looks, for all of them.
--
-- If Redis' clock was set back, a lease would lapse late by as much; so all leases begin anew. After a
-- time without a look nobody could renew either: Redis stood still, was away, or its clock was set
-- forward. Then living workers get `patience ms` to renew before anything is taken from them.
-- KEYS  reclaim, job streams, stream of tenants' jobs
-- ARGV  group, consumer that owns released entries, lease ms, interval ms, patience ms
-- Reply: how many entries were given to it
--
-- `reclaim` holds "<time of the last look> <time before which nothing is taken>", in ms.
local reclaim, group, released = KEYS[1], ARGV[1], ARGV[2]
local lease, interval, patience = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

-- Of one worker in one stream at one look. XCLAIM takes a microsecond for each.
local MAX_ENTRIES = 1000

-- A worker that listens or waits looks less often than its interval says.
local MIN_GAP = 2000

local function restart_leases(stream, consumer)
  local start = '-'
  repeat
    local pending = redis.call('XPENDING', stream, group, start, '+', MAX_ENTRIES, consumer)
    local ids = ids_of(pending)
    if #ids > 0 then
      start = '(' .. ids[#ids]
      ids[#ids + 1] = 'JUSTID'
      redis.call('XCLAIM', stream, group, consumer, 0, unpack(ids))
    end
  until #pending < MAX_ENTRIES
end

local function release_lapsed(stream, consumer)
  local pending = redis.call('XPENDING', stream, group, 'IDLE', lease, '-', '+', MAX_ENTRIES, consumer)
  give_to(released, stream, group, ids_of(pending))
  return #pending
end

local now = now_ms()
local last = ask('GET', reclaim)
local at, hold = string.match(last or '', '^(%d+) (%d+)$')
at, hold = tonumber(at), tonumber(hold or '0')
if at and now >= at - interval and now < at + interval then return 0 end

local set_back = at and now < at
if set_back then
  hold = 0
elseif at and now > at + math.max(patience, 3 * interval, MIN_GAP) then
  hold = now + patience
end
redis.call('SET', reclaim, string.format('%d %d', now, hold))

local count = 0
for level = 2, now < hold and 1 or #KEYS do
  local stream = KEYS[level]
  -- The fetch says so where a stream is missing; that of the tenants' jobs may have no group yet.
  local there = redis.call('EXISTS', stream) == 1 and (level < #KEYS or last_delivered(stream, group))
  for _, info in ipairs(there and redis.call('XINFO', 'CONSUMERS', stream, group) or {}) do
    local consumer = by_name(info)
    if consumer.pending > 0 and consumer.name ~= released then
      if set_back then
        restart_leases(stream, consumer.name)
      else
        count = count + release_lapsed(stream, consumer.name)
      end
    end
  end
end
return count
