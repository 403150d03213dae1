#!lua flags=allow-oom
-- Give up on an entry: keep its job with the reason, and tell the subscriber if the id is known. Of a
-- deleted job nothing is kept.
-- KEYS  stream, dead; if the id is known: state, tokens, load, running
-- ARGV  group, consumer, entry, code, message, encoded job, letters to keep, for how many s, ttl s; if
--       the id is known: job id, event (failed)
-- Reply: DEAD, NOT_OWNER
local stream, dead, state, tokens, load, running = unpack(KEYS)
local group, consumer, entry, code, message, job, keep, keep_s, ttl_s = unpack(ARGV, 1, 9)
local job_id, event = unpack(ARGV, 10, 11)
local now = now_ms()

local deleted, tenant, level = false, nil, nil
if not owns(stream, group, consumer, entry) then return 'NOT_OWNER' end
if state then
  local known = ask('HMGET', state, 'status', 'stream', 'entry', 'deleted', 'tenant', 'share', 'tokens')
  if not known then -- the key is of a wrong type: it never belonged to this job
    redis.call('DEL', state)
    known = {}
  end
  -- An entry with the id of another job must not end that job.
  local own = not known[3] or (known[2] == stream and known[3] == entry)
  if own and not is_terminal(known[1]) then
    redis.call('HSET', state, 'stream', stream, 'entry', entry)
    end_job(state, tokens, held_by(state), 'failed', event, string.format('%d', now), ttl_s)
    give_back(load)
    ask('ZREM', running, job_id)
    if known[5] then
      local book = tenant_book(prefix_of(load))
      book.settle_job(state, is_count(known[7]) and tonumber(known[7]) or 0)
      book.close(load)
    end
  elseif own then
    bury(state, tokens, ttl_s)
  end
  deleted = own and known[4]
  if own and known[5] then tenant, level = known[5], select(2, share_of(known[6])) end
end
if not deleted then
  redis.call('XADD', dead, 'MAXLEN', '~', keep, '*', 'id', job_id or '', 'code', code,
    'message', message, 'stream', stream, 'entry', entry, 'job', job, 'tenant', tenant or '', 'level', level or '')
  redis.call('XTRIM', dead, 'MINID', '~', string.format('%d', math.max(0, now - keep_s * 1000)))
  redis.call('EXPIRE', dead, keep_s)
end
acknowledge(stream, group, entry)
return told('DEAD')
