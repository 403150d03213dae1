#!lua flags=allow-oom
-- Delete a job. Of one that has ended all goes at once: state, log and idempotency key. One that waits or
-- runs is cancelled, and goes soon after its end. While an entry stands the state stays: without it the
-- next take of the entry would begin the job again.
-- KEYS  state, tokens, load, a job stream
-- ARGV  group, what to publish on `control:DATABASE`, event (cancelled at token 0), ttl s
-- Reply: UNKNOWN, DELETED, REQUESTED (it goes after its end)
local state, tokens, load, own = unpack(KEYS)
local group, message, event, ttl_s = unpack(ARGV)

local known = redis.call('HMGET', state, 'status', 'key', 'tombstone', 'stream', 'entry', 'deleted', 'share', 'epoch')
local status, key, tombstone, stream, entry, deleted, share, epoch = unpack(known, 1, 8)
if not status then return 'UNKNOWN' end

-- The entry of a job that has ended, not yet acknowledged. Without a group there is none.
local function is_pending()
  if not stream or not entry or not names_entry(own, stream, entry) then return false end
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if not pending.err then return #pending > 0 end
  if string.find(pending.err, 'NOGROUP') or string.find(pending.err, 'WRONGTYPE') then return false end
  error(pending)
end
local ended = is_terminal(status)
-- A repeat finds a job that was parked until then: it goes by itself.
local stays = not ended or tombstone or is_pending() or deleted and share and epoch == '0'

-- The key of another user of Redis may not be touched. It stands for no job soon, and expires.
local name = key_name(state, key)
if name and redis.pcall('GET', name) == id_of(state) then redis.pcall('DEL', name) end
if not stays then
  redis.call('DEL', state)
  redis.call('DEL', tokens)
  return 'DELETED'
end
redis.call('HDEL', state, 'record', 'owner')
redis.call('HSET', state, 'deleted', '1')
if not ended then stop_job(state, tokens, load, message, event, ttl_s) end
return told('REQUESTED')
