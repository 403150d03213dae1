#!lua flags=allow-oom
-- Log and publish the new tokens and the ends of jobs. One call serves a whole batch.
-- KEYS  load, running; per item: state, tokens, and the job's stream if it ends
-- ARGV  group, ttl s; per item: "<take id> <index of the first token> <status> <entry> <tokens
--       in each event>", its events, and the terminal event if it ends; else entry is "-" and status "-", or
--       "+" for a tenant's job. Where nothing but one event comes, it is
--       "<take id> <index of the first token> <tokens after the event>", "+" behind it for a tenant's job, and
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
local of_tenants, channels, id_at = prefix .. 'jobs:tenants', prefix .. 'channel:' .. DATABASE .. ':', #prefix + #'state:' + 1

-- Of a job that ends also what `end_job` and `note_ended` have to know. A field that a state does not have costs most:
-- it is compared with all that are there.
local function read(state, ends, moved)
  if not ends and moved then return ask('HMGET', state, 'take', 'tokens', 'cancel', 'status', 'charged') end
  if not ends then return ask('HMGET', state, 'take', 'tokens', 'cancel', 'status') end
  if not moved then return ask('HMGET', state, 'take', 'tokens', 'cancel', 'status', 'cost', 'bytes', 'key') end
  return ask('HMGET', state, 'take', 'tokens', 'cancel', 'status', 'cost', 'bytes', 'key', 'tenant', 'share')
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
-- Tenants' jobs that have more tokens than were charged for them. Who has jobs that end, and by his name what
-- `settle_tenant` has to know.
local charges, names, totals

-- A tenant's job has ended.
local function note_ended(name, share, cost, bytes, charged, logged)
  if not names then names, totals = {}, {} end
  local own = totals[name]
  if not own then
    totals[name] = {jobs = 1, held = 1, charged = charged, shares = {share}, cost = cost, bytes = bytes, logged = logged}
    names[#names + 1] = name
    return
  end
  own.jobs, own.held, own.charged, own.shares[#own.shares + 1] = own.jobs + 1, own.held + 1, own.charged + charged, share
  own.cost, own.bytes, own.logged = own.cost + cost, own.bytes + bytes, own.logged + logged
end

local reply, item, key, arg = {}, 0, 3, 3
-- A name of this script's own is found sooner than a global one.
local KEYS, ARGV, call, pcall, match, sub = KEYS, ARGV, redis.call, redis.pcall, string.match, string.sub
while key < #KEYS do
  local state, tokens, outcome = KEYS[key], KEYS[key + 1], nil
  -- Of a tenant's job that goes on: its tokens, and those that were charged for it.
  local logged, charged
  local take_id, index, after, plus = match(ARGV[arg], '^(%S+) (%d+) (%d+)(%+?)$')
  if take_id then
    -- Nearly all items are one event. So nothing is done for it that could be left out: its numbers stay the
    -- texts that they come as, which Redis would only make texts again.
    local event, moved = ARGV[arg + 1], plus == '+'
    -- Nothing beyond what was charged before it began: no need to know how much was charged.
    local beyond = moved and tonumber(after) > ADVANCE
    local known = not beyond and pcall('HMGET', state, 'take', 'tokens', 'cancel', 'status')
    if not known or known.err then known = read(state, false, beyond) or {} end
    if known[1] ~= take_id then
      outcome = 'FENCED'
    elseif (known[2] or '0') == index and not is_terminal(known[4]) and add_event(tokens, after .. '-0', event) then
      call('HSET', state, 'tokens', after)
      publish(channels .. sub(state, id_at), event)
      generated = generated + after - index
      if moved then generated_tenants = generated_tenants + after - index end
      if beyond then logged, charged = tonumber(after), known[5] end
      outcome = known[3] and 'CANCEL'
    else
      outcome = tonumber(after) <= (tonumber(known[2] or '0') or -1) and 'DUP' or 'GAP'
    end
    key, arg = key + 2, arg + 2
  else
    local status, entry, counts
    take_id, index, status, entry, counts = string.match(ARGV[arg], '^(%S+) (%d+) (%S+) (%S+) (.*)$')
    local ends, number, stream = entry ~= '-', arg + 1, nil
    local _, events = string.gsub(counts, '%d+', '')
    local moved = status == '+'
    if ends then
      stream = KEYS[key + 2]
      moved = stream == of_tenants
    end
    local known = read(state, ends, moved) or {}
    if known[1] ~= take_id then
      outcome = 'FENCED'
    else
      local placed, grown, complete, more = log_events(state, tokens, known, tonumber(index), counts, number, ends)
      if moved then generated_tenants = generated_tenants + more end
      if not placed then
        outcome = 'GAP'
      elseif ends and not is_terminal(known[4]) and complete then
        now = now or string.format('%d', now_ms())
        -- Who deletes a job that runs cancels it, too.
        local deleted = known[3] and field_of(state, 'deleted')
        local held = {string.format('%d', complete), known[5], known[6], known[7], deleted}
        local cost, bytes = end_job(state, tokens, held, status, ARGV[number + events], now, ttl_s, 'tokens', held[1])
        if moved and known[8] and known[9] then
          -- More than the advance was charged only for what was logged beyond it.
          local paid = complete > ADVANCE and tonumber(field_of(state, 'charged') or '') or ADVANCE
          note_ended(known[8], known[9], cost, bytes, paid, complete)
        end
      elseif ends then
        outcome = is_terminal(known[4]) and 'DUP' or 'GAP'
        if outcome == 'DUP' then
          --uses bury
          -- Where it was ended from outside, nothing of it expires before its entry goes, which is now.
          bury(state, tokens, ttl_s)
        end
      elseif not grown then
        outcome = 'DUP'
      elseif known[3] then
        outcome = 'CANCEL'
      end
      if moved and not ends and grown then logged, charged = tonumber(known[2] or '0') + more, known[5] end
      -- Repeats acknowledge too: the first call may have stopped before it did.
      if ends and outcome ~= 'GAP' then
        entries[stream] = entries[stream] or {}
        table.insert(entries[stream], entry)
        ended[#ended + 1] = id_of(state)
      end
    end
    key, arg = key + (ends and 3 or 2), number + events + (ends and 1 or 0)
  end
  if logged then
    charged = tonumber(charged or '') or ADVANCE
    if logged > charged then
      charges = charges or {}
      charges[#charges + 1] = {state = state, charged = charged, logged = logged}
    end
  end
  if outcome then
    reply[#reply + 1] = item
    reply[#reply + 1] = outcome
  end
  item = item + 1
end
add_to(load, 'generated', generated)
add_to(load, 'generated_tenants', generated_tenants)

-- Where the jobs that end are all of one tenant, none of its jobs is parked and it has no limits a minute, only numbers of
-- its record change. Writing these costs less than the accounts that others need.
local settled = not charges and not names
if not settled and not charges and #names == 1 then
  --uses parse_record, format_record, bucket_of, weight_of
  local name, records, max = names[1], prefix .. 'shares:tenants', math.max
  local own = totals[name]
  local vtime, last, held_tokens, held_bytes, served, jobs, jobs_running, parked, due, is_ready, minute =
    parse_record(field_of(records, name))
  settled = tonumber(vtime or '') and parked == '0' and due == '-' and is_ready == '0' and minute == ''
  if settled then
    local jobs_left = max(0, jobs - own.jobs)
    vtime = vtime + (own.logged - own.charged) / weight_of(field_of(prefix .. 'tenants:limits', name))
    redis.call('HSET', records, name, format_record(vtime, last, max(0, held_tokens - own.cost),
      max(0, held_bytes - own.bytes), served + own.logged, jobs_left, max(0, jobs_running - own.held), 0, '-', '0', ''))
    local score = jobs_left > 0 and bucket_of(jobs_left) or -math.floor(now / 1000)
    if score ~= bucket_of(jobs + 0) then ask('ZADD', prefix .. 'shares:jobs', text(score), name) end
  end
end
if not settled then
  --uses tenant_accounts, charge_more, settle_tenant
  local accounts = tenant_accounts(prefix)
  for _, one in ipairs(charges or {}) do
    local name = field_of(one.state, 'tenant')
    if name then charge_more(accounts, one.state, name, one.charged, one.logged) end
  end
  accounts.open_all(names or {})
  for _, name in ipairs(names or {}) do settle_tenant(accounts, name, totals[name]) end
  accounts.now = tonumber(now or '')
  accounts.close(load)
end

if #ended > 0 then
  give_back(load)
  ask('ZREM', running, unpack(ended))
  for stream, ids in pairs(entries) do acknowledge(stream, group, unpack(ids)) end
end
return told(reply)
