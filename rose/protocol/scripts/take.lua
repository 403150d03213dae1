#!lua flags=allow-oom
-- Begin to work on entries that this consumer owns. The id of the take, which no other has, fences the worker
-- that had the job before. From then on nobody else appends to its log. A repeat with the same take id, while
-- this consumer still has the job, answers what the first call did and changes nothing.
-- KEYS  running; per entry: stream, state, tokens; in mode "unread" listener, turn and waiting come last
-- ARGV  group, consumer, ttl s, mode, fingerprint of the model or "", "" without placement, else what `placement_of`
--       needs; per entry: entry, take id
--       mode: "alone" takes suspects too; "unread" reads the next entry of the stream of the one entry
--       that is given, and takes it if it is that one; one of a tenant it takes if no other waits; else ""
-- Reply: per entry
--        TAKEN <epoch> <attempts> <cancel flag> <tokens in the log> <now ms> <deadline ms or "-">
--                          times are of Redis' clock; with placement also what `placement_of.begins` adds
--        ENDED, DUPLICATE  nothing is left to do; the entry is acknowledged
--        SUSPECT           the lease of the last take has lapsed without a new token: take it alone
--        OTHER_MODEL <tokens in the log>
--                          another model has written these tokens; nothing has changed
--        NOT_OWNER
--        MALFORMED         somebody else has written into its state or its log
--        STATE_GONE        its log has tokens, and its state is deleted
--        Mode "unread": {1 if other idle workers wait for their turn, of whom the next one listens now,
--        else 0, entry that was read, its job, or nil of a tenant, one of these, or "" if it is another
--        entry}; the first alone if there was none to read, it was passed over, or a fetch must see to it.
local running = KEYS[1]
local group, consumer, ttl_s, mode, model, placement = unpack(ARGV, 1, 6)
local now, prefix = string.format('%d', now_ms()), prefix_of(running)
local of_tenants, place = prefix .. 'jobs:tenants', nil
if placement ~= '' then
  --uses placement_of
  place = placement_of(prefix, group, consumer, tonumber(now), placement)
end

local taker = {consumer = consumer, model = model, now = now, begun = {}}

local function reply_of(known, epoch, attempts, logged)
  return take_reply(now, epoch or 0, attempts or 0, known[6], logged, known[11])
end

local function read(state)
  return ask('HMGET', state, 'status', 'stream', 'entry', 'tokens', 'taken_at', 'cancel', 'attempts', 'epoch',
    'worker', 'take', 'deadline_ms', 'model', 'writers')
end

-- Whose the text is from which token on: a line for each worker, "<tokens before> <its name>".
local function writers_with(writers, logged)
  -- Of a text that many workers have had, the last ones are remembered.
  local MAX_WRITERS_BYTES = 2048
  local last = string.match(writers, '([^\n ]*)\n$')
  if last == consumer then return writers end
  writers = writers .. string.format('%d %s\n', logged, consumer)
  while #writers > MAX_WRITERS_BYTES do writers = string.gsub(writers, '^[^\n]*\n', '') end
  return writers
end

-- What `first_take` has not begun, because something has happened to the job before: seldom. `known` is what `read`
-- returns. This consumer owns the entry.
local function begin(stream, state, tokens, entry, take_id, known)
  --uses is_terminal, bury, acknowledge, stands_at
  if not known then return 'MALFORMED' end
  if is_terminal(known[1]) then
    -- It was ended from outside, or its worker died before the acknowledgement.
    bury(state, tokens, ttl_s)
    ask('ZREM', running, id_of(state))
    acknowledge(stream, group, entry)
    return 'ENDED'
  end
  -- Ids are unique within a stream only: two streams may have the same one.
  local other = known[2] and known[3] and (known[2] ~= stream or known[3] ~= entry)
  if other and stands_at(stream, known[2], known[3]) then
    -- A client has repeated a plain XADD, so the job came a second time, or somebody has used its id. What
    -- came first stands.
    acknowledge(stream, group, entry)
    return 'DUPLICATE'
  end

  for _, i in ipairs({4, 5, 7, 8}) do
    if known[i] and not is_count(known[i]) then return 'MALFORMED' end
  end
  local logged = tonumber(known[4] or '0')
  local last = ask('XREVRANGE', tokens, '+', '-', 'COUNT', '1')
  if last and last[1] and not (known[1] or known[4] or known[8]) then return 'STATE_GONE' end
  if not last or (last[1] and last[1][1] or '0-0') ~= string.format('%d-0', logged) then return 'MALFORMED' end
  if known[1] == 'running' and known[9] == consumer and known[10] == take_id and not other then
    return reply_of(known, known[8], known[7], logged)
  end
  -- The worker is told of a cancelled one, so that it ends it.
  if logged > 0 and model ~= '' and (known[12] or '') ~= '' and known[12] ~= model and not known[6] then
    return string.format('OTHER_MODEL %d', logged)
  end
  local progress = not known[5] or logged > tonumber(known[5])
  local attempts = progress and 0 or tonumber(known[7] or '0')
  if attempts > 0 and mode ~= 'alone' then return 'SUSPECT' end
  local epoch = string.format('%d', tonumber(known[8] or '0') + 1)
  redis.call('HSET', state, 'status', 'running', 'taken_at', known[4] or '0', 'attempts', attempts + 1, 'epoch', epoch,
    'worker', consumer, 'take', take_id, 'model', model, 'started_ms', now, 'writers', writers_with(known[13] or '', logged))
  if known[2] ~= stream or known[3] ~= entry or not known[4] then
    -- It came by a plain XADD, or its first entry is gone.
    redis.call('HSET', state, 'stream', stream, 'entry', entry, 'tokens', logged)
  end
  -- A cancel that came before the first take lets the state expire, in case there is no such job.
  if not known[1] then redis.call('PERSIST', state) end
  taker.begun[#taker.begun + 1], taker.begun[#taker.begun + 2] = now, id_of(state)
  return reply_of(known, epoch, attempts + 1, logged)
end

local function take(stream, state, tokens, entry, take_id)
  if not owns(stream, group, consumer, entry) then return 'NOT_OWNER' end
  local fresh, deadline = untouched(stream, entry, state, tokens)
  local outcome = fresh and first_take(taker, take_id, state, deadline)
    or begin(stream, state, tokens, entry, take_id, read(state))
  if not place then return outcome end
  --uses chain_of
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  return place.begins(found and chain_of(found), outcome)
end

-- Claim a tenant's job that has just come and waits alone, and begin on it. Nil where it does not: a fetch sees
-- whose turn it is. What that changes of the accounts is written here by hand, since it is less than the accounts themselves
-- would cost.
local function take_alone(state, tokens, entry, take_id)
  --uses is_parked, share_of, weight_of, parse_record, format_record, field_of, PARKED, ADVANCE
  local known = ask('HMGET', state, 'status', 'share', 'epoch', 'charged', 'entry', 'cancel', 'tenant', 'deadline_ms') or {}
  local name, deadline, shares = known[7], known[8], prefix .. 'shares:'
  local fresh = is_parked(unpack(known, 1, 4)) and known[5] == entry and not known[6] and name and nothing_logged(tokens)
  if not fresh then return nil end
  -- One job of this tenant is parked, it is ready, and no other tenant is.
  local records, ready, clock = shares .. 'tenants', shares .. 'ready', shares .. 'clock'
  local vtime, last, held_tokens, held_bytes, served, jobs, jobs_running, parked, due, is_ready, minute =
    parse_record(field_of(records, name))
  vtime, due = tonumber(vtime or ''), tonumber(due or '')
  if not vtime or parked ~= '1' or not due or is_ready ~= '1' or ask('ZCARD', ready) ~= 1 then return nil end
  local reached = ask('HMGET', clock, 'vtime', 'waits')
  -- Before the first fetch that finds this stream there is no group.
  local claimed = reached and redis.pcall('XCLAIM', of_tenants, group, consumer, '0', entry, 'FORCE',
    unpack(place and {'RETRYCOUNT', '1'} or {'JUSTID'}))
  if not claimed or claimed.err or #claimed == 0 then return nil end

  local weight, prompt, level = weight_of(field_of(prefix .. 'tenants:limits', name)), share_of(known[2])
  local before = due < 0 and 0 or vtime - jobs_running * ADVANCE / weight
  if before > (tonumber(reached[1] or '') or 0) then
    redis.call('HSET', clock, 'vtime', text(before), 'waits', '')
  elseif (reached[2] or '') ~= '' then
    redis.call('HSET', clock, 'waits', '')
  end
  redis.call('HSET', records, name, format_record(vtime + (prompt + ADVANCE) / weight, last, held_tokens, held_bytes,
    served, jobs, jobs_running + 1, 0, '-', '0', minute))
  local job_id = id_of(state)
  ask('ZREM', shares .. 'parked:' .. name, job_id)
  ask('ZREM', shares .. 'heads', name)
  ask('ZREM', ready, name)
  if deadline then ask('ZREM', shares .. 'deadlines', job_id) end
  add_to(prefix .. 'load', PARKED[level], -1)
  if not place then return first_take(taker, take_id, state, deadline) end
  --uses chain_of
  local chain = chain_of(claimed[1])
  place.weigh(1)
  if not place.passes(of_tenants, entry, chain) then
    return place.begins(chain, first_take(taker, take_id, state, deadline))
  end
  redis.call('HSET', state, 'charged', text(ADVANCE))
  return 'PASSED'
end

local function take_unread(stream, state, tokens, listener, turn, waiting, entry, take_id)
  local others = redis.call('EXISTS', waiting)
  if others == 1 then
    --uses hand_on
    hand_on(listener, turn, waiting, consumer)
  end
  if stream == of_tenants then
    local outcome = take_alone(state, tokens, entry, take_id)
    if outcome == 'PASSED' then return {others} end
    if outcome then return {others, entry, false, outcome} end
    local again = (ask('HMGET', state, 'take') or {})[1] == take_id and redis.call('XRANGE', stream, entry, entry)[1]
    if not again then return {others} end
    return {others, entry, job_of(again), take(stream, state, tokens, entry, take_id)}
  end
  local fresh, deadline = untouched(stream, entry, state, tokens)
  local known = not fresh and read(state)
  local again = known and known[10] == take_id and redis.call('XRANGE', stream, entry, entry)[1]
  if again then return {others, entry, job_of(again), take(stream, state, tokens, entry, take_id)} end
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', '1', 'STREAMS', stream, '>')
  if not reply or #reply == 0 then return {others} end
  local first = entries_of(reply)[1]
  local outcome, chain = '', nil
  if place then
    --uses chain_of
    chain = chain_of(first)
    place.weigh(1)
    if place.passes(stream, first[1], chain) then return {others} end
  end
  if first[1] == entry and fresh then
    outcome = first_take(taker, take_id, state, deadline)
  elseif first[1] == entry then
    outcome = begin(stream, state, tokens, entry, take_id, known)
  end
  if place then outcome = place.begins(chain, outcome) end
  return {others, first[1], job_of(first), outcome}
end

local reply = {}
if mode == 'unread' then
  reply = take_unread(KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], ARGV[7], ARGV[8])
else
  for item = 0, (#KEYS - 1) / 3 - 1 do
    reply[item + 1] = take(KEYS[item * 3 + 2], KEYS[item * 3 + 3], KEYS[item * 3 + 4],
      ARGV[item * 2 + 7], ARGV[item * 2 + 8])
  end
end
if #taker.begun > 0 then ask('ZADD', running, unpack(taker.begun)) end
if place then place.close() end
return reply
