-- Begin to work on an entry that this consumer owns: raises the epoch, so that whoever held the
-- job before is fenced, and returns the tokens logged so far.
-- KEYS  stream, state, tokens
-- ARGV  group, consumer, entry, now ms, ttl s
local stream, state, tokens = unpack(KEYS)
local group, consumer, entry, now_ms, ttl_s = unpack(ARGV)

if not owns(stream, group, consumer, entry) then return {'NOT_OWNER'} end

local known = redis.call('HMGET', state, 'status', 'stream', 'entry', 'tokens', 'taken_at', 'cancel')
if is_terminal(known[1]) then
  -- Cancelled while it waited, or ended by a worker that died before its acknowledgement.
  redis.call('EXPIRE', state, ttl_s)
  redis.call('EXPIRE', tokens, ttl_s)
  acknowledge(stream, group, entry)
  return {'ENDED'}
end
-- Entry ids are unique within a stream only: two streams may have the same one.
local other = known[3] and (known[2] ~= stream or known[3] ~= entry)
if other and #redis.call('XRANGE', known[2], known[3], known[3]) == 1 then
  -- A plain XADD that a client retried: the same job a second time. The first entry stands.
  acknowledge(stream, group, entry)
  return {'DUPLICATE'}
end

local logged = tonumber(known[4] or '0')
if not known[5] or logged > tonumber(known[5]) then
  redis.call('HSET', state, 'attempts', 0) -- it got further than last time: no crash loop
end
local attempts = redis.call('HINCRBY', state, 'attempts', 1)
local epoch = redis.call('HINCRBY', state, 'epoch', 1)
redis.call('HSET', state, 'status', 'running', 'stream', stream, 'entry', entry, 'tokens', logged,
  'taken_at', logged, 'worker', consumer, 'started_ms', now_ms)
return {'TAKEN', epoch, attempts, known[6] or '', redis.call('XRANGE', tokens, '-', '+')}
