#!lua flags=allow-oom
-- Give up on an entry: keep its job with the reason, and tell the subscriber if the id is known. Of a
-- deleted job nothing is kept.
-- KEYS  stream, dead; if the id is known: state, tokens, load, running
-- ARGV  group, consumer, entry, code, message, encoded job, letters to keep, bytes of them, for how many s, ttl s;
--       if the id is known: job id, event (failed)
-- Reply: DEAD, NOT_OWNER
local stream, dead, state, tokens, load, running = unpack(KEYS)
local group, consumer, entry, code, message, job, keep, keep_bytes, keep_s, ttl_s = unpack(ARGV, 1, 10)
local job_id, event = unpack(ARGV, 11, 12)
local now = now_ms()

local function size_of(text, its_job)
  local BESIDE = 512 -- what a letter takes beside its message and its job
  return #text + #its_job + BESIDE
end

-- The bytes of a letter that is kept, and how many had come with it since the list was empty.
local function sizes_of(letter)
  local fields = by_name(letter[2])
  return size_of(fields.message or '', fields.job or ''), tonumber(fields.total or '') or 0
end

-- How many bytes of letters have come with this one.
local function count_bytes()
  local last = redis.call('XREVRANGE', dead, '+', '-', 'COUNT', 1)[1]
  return size_of(message, job) + (last and select(2, sizes_of(last)) or 0)
end

-- The oldest letters go until this one fits.
local function make_room(total)
  for left = redis.call('XLEN', dead) - 1, 0, -1 do
    local size, with_it = sizes_of(redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1])
    if total - with_it + size <= tonumber(keep_bytes) then return end
    redis.call('XTRIM', dead, 'MAXLEN', left)
  end
end

local deleted, tenant, level = false, nil, nil
if not owns(stream, group, consumer, entry) then return 'NOT_OWNER' end
local total = count_bytes()
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
      local accounts = tenant_accounts(prefix_of(load))
      settle_state(accounts, state, is_count(known[7]) and tonumber(known[7]) or 0)
      accounts.close(load)
    end
  elseif own then
    bury(state, tokens, ttl_s)
  end
  deleted = own and known[4]
  if own and known[5] then tenant, level = known[5], select(2, share_of(known[6])) end
end
if not deleted then
  make_room(total)
  redis.call('XADD', dead, 'MAXLEN', '~', keep, '*', 'id', job_id or '', 'code', code,
    'message', message, 'stream', stream, 'entry', entry, 'job', job, 'tenant', tenant or '', 'level', level or '',
    'total', string.format('%d', total))
  redis.call('XTRIM', dead, 'MINID', '~', string.format('%d', math.max(0, now - keep_s * 1000)))
  redis.call('EXPIRE', dead, keep_s)
end
acknowledge(stream, group, entry)
return told('DEAD')
