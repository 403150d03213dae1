#!lua flags=allow-oom
-- Log and publish the new tokens and the ends of jobs. One call serves a whole batch.
-- KEYS  load, running; per item: state, tokens, and the job's stream if it ends
-- ARGV  group, ttl s; per item: "<epoch> <index of the first token> <status> <entry> <tokens
--       in each event>", its events, and the terminal event if it ends; else entry is "-" and status "-", or
--       "+" for a tenant's job. Where nothing but one event comes, it is
--       "<epoch> <index of the first token> <tokens after the event>", "+" behind it for a tenant's job, and
--       the event
-- Reply: {item number (from 0), outcome, ...} of the items that were not simply stored:
--        CANCEL  stored, and somebody has asked to cancel the job
--        DUP     a repeat: the log has it already
--        FENCED  the job belongs to another worker
--        GAP     tokens before it are missing, or somebody else has written into the log
local load, running = KEYS[1], KEYS[2]
local group, ttl_s = ARGV[1], ARGV[2]
local now
local generated, generated_tenants = 0, 0
local prefix = prefix_of(load)
local of_tenants = prefix .. 'jobs:tenants'

-- Of a job that ends also what `end_job` and `note_ended` have to know. A field that a state does not have costs most:
-- it is compared with all that are there.
local function read(state, ends, moved)
  if not ends and moved then return ask('HMGET', state, 'epoch', 'tokens', 'cancel', 'status', 'charged') end
  if not ends then return ask('HMGET', state, 'epoch', 'tokens', 'cancel', 'status') end
  if not moved then return ask('HMGET', state, 'epoch', 'tokens', 'cancel', 'status', 'cost', 'bytes', 'key') end
  return ask('HMGET', state, 'epoch', 'tokens', 'cancel', 'status', 'cost', 'bytes', 'key', 'tenant', 'share')
end

local function field_of(state, field)
  return (ask('HMGET', state, field) or {})[1]
end

-- The accounts of tenants, opened where a job of theirs ends or has more tokens than were charged for it.
local accounts
local function open_accounts()
  if accounts then return accounts end
  --uses bucket_of, text, weight_of
  accounts = {charge = nil, note_ended = nil, close = nil}
  -- The names of the tenants whose jobs end, and by these what `settle_tenant` has to know.
  local names, totals, book, charge, settle = {}, {}, nil, nil, nil

  local function open_book()
    if book then return end
    --uses tenant_book, charge_more, settle_tenant
    book, charge, settle = tenant_book(prefix), charge_more, settle_tenant
  end

  -- A job that runs has `logged` tokens.
  function accounts.charge(state, charged, logged)
    local name = field_of(state, 'tenant')
    if not name then return end
    open_book()
    charge(book, state, name, charged, logged)
  end

  -- A job has ended with `logged` tokens.
  function accounts.note_ended(state, name, share, cost, bytes, logged)
    if not name or not share then return end
    local own = totals[name]
    if not own then
      own = {jobs = 0, held = 0, charged = 0, shares = {}, cost = 0, bytes = 0, logged = 0}
      totals[name], names[#names + 1] = own, name
    end
    -- More than the advance was charged only for what was logged beyond it.
    local charged = logged > ADVANCE and tonumber(field_of(state, 'charged') or '') or ADVANCE
    own.jobs, own.held, own.charged, own.shares[#own.shares + 1] = own.jobs + 1, own.held + 1, own.charged + charged, share
    own.cost, own.bytes, own.logged = own.cost + cost, own.bytes + bytes, own.logged + logged
  end

  -- Where the jobs that end are all of one tenant, none of its jobs is parked and it has no limits a minute, only numbers
  -- of its record change. Writing these costs less than the book alone. False if it is not so.
  local function settle_alone(name, own)
    local shares = prefix .. 'shares:'
    local record = (ask('HMGET', shares .. 'tenants', name) or {})[1] or ''
    local vtime, last, held_tokens, held_bytes, served, jobs, jobs_running =
      string.match(record, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) 0 %- 0$')
    if not tonumber(vtime or '') then return false end
    local weight = weight_of((ask('HMGET', prefix .. 'tenants:limits', name) or {})[1])
    local max, jobs_left = math.max, math.max(0, jobs - own.jobs)
    redis.call('HSET', shares .. 'tenants', name, string.format('%s %s %d %d %d %d %d 0 - 0',
      text(vtime + (own.logged - own.charged) / weight), last, max(0, held_tokens - own.cost), max(0, held_bytes - own.bytes),
      served + own.logged, jobs_left, max(0, jobs_running - own.held)))
    local score = jobs_left > 0 and bucket_of(jobs_left) or -math.floor(now / 1000)
    if score ~= bucket_of(jobs + 0) then ask('ZADD', shares .. 'jobs', text(score), name) end
    return true
  end

  function accounts.close()
    if not book and #names == 1 and settle_alone(names[1], totals[names[1]]) then return end
    open_book()
    if #names > 0 then book.open_all(names) end
    for _, name in ipairs(names) do settle(book, name, totals[name]) end
    book.now = tonumber(now or '')
    book.close(load)
  end

  return accounts
end

local function charge(state, charged, logged)
  charged = tonumber(charged or '') or ADVANCE
  if logged > charged then open_accounts().charge(state, charged, logged) end
end

-- Nearly all items are one event. So nothing is done for it that could be left out: its numbers stay the
-- texts that they come as, which Redis would only make texts again.
local channels, id_at = prefix .. 'channel:', #prefix + #'state:' + 1
local function append_one(state, tokens, epoch, index, after, event, moved)
  -- Nothing beyond what was charged before it began: no need to know how much was charged.
  local charged = moved and tonumber(after) > ADVANCE
  local known = read(state, false, charged) or {}
  if known[1] ~= epoch then return 'FENCED' end
  if (known[2] or '0') == index and not is_terminal(known[4]) and add_event(tokens, after .. '-0', event) then
    redis.call('HSET', state, 'tokens', after)
    publish(channels .. string.sub(state, id_at), event)
    generated = generated + after - index
    if moved then generated_tenants = generated_tenants + after - index end
    if charged then charge(state, known[5], tonumber(after)) end
    return known[3] and 'CANCEL'
  end
  return tonumber(after) <= (tonumber(known[2] or '0') or -1) and 'DUP' or 'GAP'
end

-- Log and publish the events from ARGV[number] on that the log does not have yet. Returns whether all
-- of them fit into the log, whether one was new, and how many tokens it has if it ends with the last one.
-- Where the job `ends` with them, `end_job` notes how many those are.
local function log_events(state, tokens, known, index, counts, number, ends)
  local before = tonumber(known[2] or '0') or -1
  local logged, placed, first, last = before, true, nil, nil
  for count in string.gmatch(counts, '%d+') do
    local after = index + tonumber(count)
    if after > logged then
      placed = index == logged and not is_terminal(known[4])
        and add_event(tokens, after .. '-0', ARGV[number])
      if not placed then break end
      first, last, logged = first or number, number, after
    end
    index, number = after, number + 1
  end
  if first then
    generated = generated + logged - before
    if not (ends and placed) then redis.call('HSET', state, 'tokens', logged) end
    local channel = channel_of(state)
    for n = first, last do publish(channel, ARGV[n]) end
  end
  return placed, first ~= nil, index == logged and logged, logged - before
end

-- What the jobs that end leave behind: their ids, and their entries by stream.
local ended, entries = {}, {}

-- Returns the outcome, and how many KEYS and ARGV the item has.
local function append(key, arg)
  local state, tokens = KEYS[key], KEYS[key + 1]
  local epoch, index, after, plus = string.match(ARGV[arg], '^(%d+) (%d+) (%d+)(%+?)$')
  if epoch then return append_one(state, tokens, epoch, index, after, ARGV[arg + 1], plus == '+'), 2, 2 end
  local status, entry, counts
  epoch, index, status, entry, counts = string.match(ARGV[arg], '^(%d+) (%d+) (%S+) (%S+) (.*)$')
  local _, events = string.gsub(counts, '%d+', '')
  local ends, moved = entry ~= '-', status == '+'
  if ends then moved = KEYS[key + 2] == of_tenants end
  local known = read(state, ends, moved) or {}
  local outcome
  if known[1] ~= epoch then
    outcome = 'FENCED'
  else
    local placed, grown, complete, more = log_events(state, tokens, known, tonumber(index), counts, arg + 1, ends)
    if moved then generated_tenants = generated_tenants + more end
    if not placed then
      outcome = 'GAP'
    elseif ends and not is_terminal(known[4]) and complete then
      now = now or string.format('%d', now_ms())
      -- Who deletes a job that runs cancels it, too.
      local deleted = known[3] and field_of(state, 'deleted')
      local held = {string.format('%d', complete), known[5], known[6], known[7], deleted}
      local cost, bytes = end_job(state, tokens, held, status, ARGV[arg + 1 + events], now, ttl_s, 'tokens', held[1])
      if moved then open_accounts().note_ended(state, known[8], known[9], cost, bytes, complete) end
    elseif ends then
      outcome = is_terminal(known[4]) and 'DUP' or 'GAP'
    elseif not grown then
      outcome = 'DUP'
    elseif known[3] then
      outcome = 'CANCEL'
    end
    if moved and not ends and grown then charge(state, known[5], tonumber(known[2] or '0') + more) end
    -- Repeats acknowledge too: the first call may have stopped before it did.
    if ends and outcome ~= 'GAP' then
      local stream = KEYS[key + 2]
      entries[stream] = entries[stream] or {}
      table.insert(entries[stream], entry)
      ended[#ended + 1] = id_of(state)
    end
  end
  return outcome, ends and 3 or 2, 1 + events + (ends and 1 or 0)
end

local reply, item, key, arg = {}, 0, 3, 3
while key < #KEYS do
  local outcome, keys, args = append(key, arg)
  if outcome then
    reply[#reply + 1] = item
    reply[#reply + 1] = outcome
  end
  item, key, arg = item + 1, key + keys, arg + args
end
add_to(load, 'generated', generated)
add_to(load, 'generated_tenants', generated_tenants)
if accounts then accounts.close() end
if #ended > 0 then
  give_back(load)
  ask('ZREM', running, unpack(ended))
  for stream, ids in pairs(entries) do acknowledge(stream, group, unpack(ids)) end
end
return told(reply)
