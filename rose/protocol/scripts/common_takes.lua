-- A worker begins on a job that nobody has begun on before, as nearly all are. Behind common.lua.
-- `taker`: consumer, fingerprint of the model, now as text, and scores and members of the jobs that this call
-- begins, which the caller writes.

-- Times are texts, and not valid where somebody else has written them.
local function take_reply(now, epoch, attempts, cancel, logged, deadline)
  return string.format('TAKEN %d %d %s %d %s %s', epoch, attempts, cancel and '1' or '0', logged, now,
    is_count(deadline) and deadline or '-')
end

local function first_take(taker, take_id, state, deadline)
  redis.call('HSET', state, 'status', 'running', 'taken_at', '0', 'attempts', '1', 'epoch', '1', 'worker', taker.consumer,
    'take', take_id, 'model', taker.model, 'started_ms', taker.now, 'writers', '0 ' .. taker.consumer .. '\n')
  local begun = taker.begun
  begun[#begun + 1], begun[#begun + 2] = taker.now, id_of(state)
  return take_reply(taker.now, 1, 1, false, 0, deadline)
end

-- Not so where somebody else has written, nor in a key of another type.
local function nothing_logged(tokens)
  local last = ask('XREVRANGE', tokens, '+', '-', 'COUNT', '1')
  return last and #last == 0
end

-- Whether `submit` has enqueued the job here and nothing has happened to it since. Then also its deadline.
local function untouched(stream, entry, state, tokens)
  local known = ask('HMGET', state, 'status', 'stream', 'entry', 'epoch', 'tokens', 'deadline_ms', 'cancel') or {}
  return known[1] == 'queued' and known[2] == stream and known[3] == entry and known[4] == '0' and known[5] == '0'
    and not known[7] and nothing_logged(tokens), known[6]
end
