#!lua flags=allow-oom
-- Read at most `count` entries: first those that a call whose reply was lost has read for this consumer,
-- then those that dead and drained workers have left to `released`, then new ones, the most urgent first.
-- A stream's head counts as if it had come `ageing ms` later for each level that its priority is below the
-- first. So a job is never overtaken by one that came more than levels * ageing later, and no job starves.
-- Where tenants have parked jobs, the one with the least virtual time is next, jobs without a tenant being
-- one more. Its job is claimed in the stream of tenants' jobs, where it has stood since its submit.
-- Before all of them come jobs of the classes that pass between tenants, in the order in which they are due.
-- With placement, a new job whose prompt another worker has in its cache may be passed over (common_placement.lua).
-- What stands aside for this worker, or for whoever is free, is read after what was released.
-- Where others wait for their turn, this worker's part of the new ones.
-- With hand-backs, what has made room for a job of a higher priority waits behind others of those that are due before it;
-- between tenants behind those that pass.
-- A worker whose slots are all taken asks for one job that is due before one of its own, of a higher priority, and the
-- next of the queue's order; its own one it hands back then. One such worker listens for all, where no idle one does.
-- Of the new entries those are begun at once, as `take` does it, on whose jobs nobody has begun before. After
-- a lost reply `take` answers the same with this take id.
-- KEYS  listener, turn, waiting, job streams, most urgent first, stream of tenants' jobs, wakeup, load, running
-- ARGV  group, consumer, count, ageing ms, max bytes, most bytes of a job, consumer that owns released
--       entries, "wait" to read nothing where another worker listens, "adopt" if a reply was lost, ttl s,
--       event (failed at token 0, its deadline has passed), take id or "" to begin on nothing, fingerprint of
--       the model or "", "" without placement, else what `placement_of` needs, "" without hand-backs, "-" if slots are
--       free, else by when a job must be due to get the slot of another: "<of the first priority> <of the second>
--       <the same two of a class that passes between tenants>" in ms, 0 for none; then, per entry that the consumer
--       knows it owns: "<number of its stream> <entry>"
-- Reply: {entries, last entry read of each job stream, last one of tenants' jobs and of the wake-ups, how many were released, 1 if there may
--         be more, 1 if this worker listens from now on, "<ms> <key>" of tenants that somebody had written over
--         and that was made anew in the last minute, or "", per entry what `take` replies if it is begun, else
--         "", ms until something that stands aside may be read by any worker, or 0}
--        If all slots are taken, 1 if this worker listens for urgent jobs; the last two of what was read are "" where
--        no jobs of tenants are among those.
--        entries: {{stream, {entry, job or nil, entry, job or nil, ...}}, ...}; a stream may come several
--        times. New entries come after the last one that anybody has read.
local group, consumer, left, ageing, room, job_bytes = unpack(ARGV, 1, 6)
local released, take_id, model, placement, hand_backs = ARGV[7], ARGV[12], ARGV[13], ARGV[14], ARGV[15]
local listener, turn, waiting_key = unpack(KEYS, 1, 3)
local of_tenants, wakeup, load, running = unpack(KEYS, #KEYS - 3)
local streams = {unpack(KEYS, 4, #KEYS - 4)}
left, ageing, room, job_bytes = tonumber(left), tonumber(ageing), tonumber(room), tonumber(job_bytes)

-- Pending entries in one look: as many as a large batch.
local MAX_PENDING = 100

local NOTHING = {{}, {}, 0, 0, 0, '', {}, 0}

-- What another worker listens to is left to it, but for what stands aside.
local waits = ARGV[8] == 'wait' and other_listener(listener, consumer)
if waits and placement == '' then
  wait_for_turn(waiting_key)
  return NOTHING
end

local prefix = prefix_of(load)
-- Where all slots are taken: by when a job of each priority must be due, and one that passes between tenants.
local watching, due_before, passing_before, passes = prefix .. 'idle:urgent', nil, nil, nil
if hand_backs ~= '' and hand_backs ~= '-' then
  local limits = {}
  for ms in string.gmatch(hand_backs, '%d+') do limits[#limits + 1] = tonumber(ms) end
  due_before, passing_before = {limits[1], limits[2], 0}, {0, 0, 0}
  if ARGV[9] ~= 'adopt' and (other_listener(listener, consumer) or other_listener(watching, consumer)) then return NOTHING end
  passes = (ask('HMGET', prefix .. 'tenants:limits', ':passes') or {})[1]
  for level in string.gmatch(passes or '', '[12]') do
    level = tonumber(level)
    passing_before[level] = limits[level + 2]
    due_before[level] = math.max(due_before[level], limits[level + 2])
  end
end

local seen, owned = {}, {}
for level, stream in ipairs(streams) do
  seen[level], owned[level] = last_delivered(stream, group)
  if not seen[level] then return redis.error_reply('NOGROUP no group ' .. group .. ' of ' .. stream) end
end

local now, place = now_ms(), nil
if placement ~= '' then
  --uses placement_of
  place = placement_of(prefix, group, consumer, now, placement)
end
local any_tenants, accounts, turns = redis.call('EXISTS', of_tenants, wakeup) > 0, nil, nil

local function open_book()
  --uses tenant_accounts, tenant_turns
  accounts = tenant_accounts(prefix)
  turns = tenant_turns(accounts)
  return accounts
end

-- Somebody may have deleted the entries of jobs that wait.
local standing = any_tenants and ask('XLEN', of_tenants)
if any_tenants and (standing ~= 0 or redis.call('EXISTS', prefix .. 'shares:heads') == 1) then
  open_book()
  streams[#streams + 1] = of_tenants
  if not standing then accounts.insist('XLEN', of_tenants) end
  local pending = redis.pcall('XPENDING', of_tenants, group)
  if pending.err then redis.call('XGROUP', 'CREATE', of_tenants, group, '0', 'MKSTREAM') end
  owned[#streams] = pending[1] or 0
end

local fetched, outcomes, mended = {}, {}, ''
local taker = {consumer = consumer, model = model, now = string.format('%d', now), begun = {}}

-- What `take` would reply to a new entry; "" if that must be called.
local function begin_new(stream, entry, job)
  local job_id = job and #job <= job_bytes and job_id_in(job)
  if not job_id then return '' end
  local state = prefix .. 'state:' .. job_id
  local fresh, deadline = untouched(stream, entry, state, prefix .. 'tokens:' .. job_id)
  return fresh and first_take(taker, take_id, state, deadline) or ''
end

-- A tenant's job is this worker's from now on. Returns what `take` would reply; "" if that must be called.
local function begin_given(job_id, epoch, cancel, deadline)
  local state = prefix .. 'state:' .. job_id
  if take_id ~= '' and epoch == '0' and not cancel and nothing_logged(prefix .. 'tokens:' .. job_id) then
    return first_take(taker, take_id, state, deadline)
  end
  redis.call('HSET', state, 'charged', text(ADVANCE))
  return ''
end

-- The entries of tenants' jobs that this call gives, in this order, with what `begin_given` has replied, or with
-- placement what it is called with.
local given, given_outcomes, given_words, number_of = {}, {}, {}, {}

-- How many entries fit into the reply though each is as large as a job can be.
local function portion()
  return math.min(left, math.floor(room / job_bytes) + 1)
end

-- The same of one that was given before, and stood aside since.
local begin_standing
if place then
  function begin_standing(entry, job)
    local job_id = job and #job <= job_bytes and job_id_in(job)
    local known = job_id and ask('HMGET', prefix .. 'state:' .. job_id, 'status', 'entry', 'epoch', 'cancel', 'deadline_ms') or {}
    return known[1] == 'queued' and known[2] == entry and begin_given(job_id, known[3], known[4], known[5])
  end
end

-- A flat list of ids and jobs, which a client parses faster than entries with fields. `new`: they were read
-- for the first time. `waited`: for how many ms they stood aside.
local function add(stream, entries, new, waited)
  local last = fetched[#fetched]
  if not last or last[1] ~= stream then
    last = {stream, {}}
    fetched[#fetched + 1] = last
  end
  local list = last[2]
  for _, entry in ipairs(entries) do
    local job = job_of(entry)
    list[#list + 1] = entry[1]
    list[#list + 1] = job
    local outcome = ''
    if stream == of_tenants then
      outcome = waited and begin_standing(entry[1], job) or given_outcomes[number_of[entry[1]]] or ''
    elseif new and take_id ~= '' then
      outcome = begin_new(stream, entry[1], job)
    end
    if place then
      --uses chain_of
      outcome = place.begins(chain_of(entry), outcome, waited)
    end
    outcomes[#outcomes + 1] = outcome
    room = room - (job and #job or 0)
  end
  left = left - #entries
end

local function read(stream, count)
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  return reply and #reply > 0 and entries_of(reply) or {}
end

-- Claim those entries that fit. Returns how many they were.
local function claim(stream, ids)
  local count = 0
  while ids[count + 1] and left > 0 and room > 0 do
    local some = {unpack(ids, count + 1, math.min(#ids, count + portion()))}
    -- XCLAIM returns no entry that somebody has deleted.
    add(stream, redis.call('XCLAIM', stream, group, consumer, 0, unpack(some)))
    count = count + #some
  end
  return count
end

-- By when an entry is due: the time at which it was enqueued, and `ageing` for each level below the first.
local function due_of(entry, level)
  return tonumber(string.match(entry, '^%d+')) + (level - 1) * ageing
end

-- The time by which the first unread entry is due; nil if there is none.
local function head(level)
  local entry = entry_after(streams[level], seen[level])
  return entry and due_of(entry[1], level)
end

-- Claim what `owner` holds, but for what is in `known`, or what `may` does not allow. Returns how many entries.
local function claim_from(owner, known, may)
  local before = left
  for level, stream in ipairs(streams) do
    local start, pending = '-', nil
    repeat
      if left == 0 or room <= 0 or owned[level] == 0 then break end
      pending = redis.call('XPENDING', stream, group, start, '+', MAX_PENDING, owner)
      local ids = {}
      for _, entry in ipairs(pending) do
        local allowed = not may or may(entry[1], level, entry[3])
        if allowed and not known[level .. ' ' .. entry[1]] then ids[#ids + 1] = entry[1] end
      end
      claim(stream, ids)
      if #pending > 0 then start = '(' .. pending[#pending][1] end
    until #pending < MAX_PENDING
  end
  return before - left
end

if ARGV[9] == 'adopt' then
  local known = {}
  for n = 16, #ARGV do known[ARGV[n]] = true end
  claim_from(consumer, known)
end
-- With hand-backs, whether an entry that was released is read now, for which it was idle so long. A tenant's that has made
-- room waits for jobs that pass between tenants, unless it passes itself.
local may_go_on, stays
if hand_backs ~= '' then
  local before = {}
  local function waits_for_passing(entry)
    local passing = accounts and passing_levels(accounts) or ''
    local found = passing ~= '' and redis.call('XRANGE', of_tenants, entry, entry)[1]
    local job_id = found and job_id_in(job_of(found) or '')
    local _, own = share_of(job_id and field_of(prefix .. 'state:' .. job_id, 'share'))
    if not job_id or string.find(passing, own, 1, true) then return false end
    for level in string.gmatch(passing, '%d') do
      if head(tonumber(level)) then return true end
    end
    local first = accounts.insist('ZRANGE', accounts.ready, '0', '0', 'WITHSCORES')
    return first[2] ~= nil and tonumber(first[2]) < 0
  end
  local function may(entry, level, idle)
    if level > 3 then return idle < MADE_ROOM_MS or not waits_for_passing(entry) end
    local due = due_of(entry, level)
    if due_before and due >= due_before[level] then return false end
    if idle < MADE_ROOM_MS then return true end
    for other = before[level] and level or 1, level - 1 do
      before[level] = math.min(before[level] or math.huge, head(other) or math.huge)
    end
    return due <= (before[level] or math.huge)
  end
  function may_go_on(entry, level, idle)
    if due_before and level > 3 then return false end
    local goes_on = may(entry, level, idle)
    stays = stays or not goes_on
    return goes_on
  end
end
local redelivered = claim_from(released, {}, may_go_on)

-- Claim what stands aside for this worker, and what any may have.
if place and not due_before then
  --uses ASIDE
  for _, one in ipairs(place.aside()) do
    local member, kind, entry, name, due = unpack(one)
    if left > 0 and room > 0 and (name == consumer or place.is_free(name, due)) then
      local stream = prefix .. 'jobs:' .. kind
      local pending = redis.pcall('XPENDING', stream, group, entry, entry, '1')
      ask('ZREM', prefix .. 'placement:aside', member)
      -- A worker of another version may have it.
      if not pending.err and pending[1] and pending[1][2] == ASIDE then
        add(stream, redis.call('XCLAIM', stream, group, consumer, '0', entry), true, pending[1][3])
      end
    end
  end
end

-- Where others wait for their turn, each takes its part of a burst: in one batch it would leave them idle. A new job goes
-- to the worker that has the fewest.
local spared, unread = 0, 0
if left > 1 and not waits and not due_before and redis.call('EXISTS', waiting_key) == 1 and redis.call('EXISTS', turn) == 0 then
  for level, stream in ipairs(streams) do
    unread = unread + math.max(0, redis.call('XLEN', stream) - owned[level])
  end
end
if unread > 1 then
  local held, idle, names, loads = {}, {}, {}, {}
  for _, stream in ipairs(streams) do
    for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
      local one = by_name(info)
      if not held[one.name] then names[#names + 1] = one.name end
      held[one.name] = (held[one.name] or 0) + one.pending
      idle[one.name] = math.min(idle[one.name] or one.idle, one.idle)
    end
  end
  local slots = #names > 0 and ask('HMGET', prefix .. 'workers', unpack(names)) or {}
  for n, name in ipairs(names) do
    local free = idle[name] < ALIVE_MS and held[name] < (tonumber(slots[n]) or 0)
    if free or name == consumer then loads[#loads + 1] = held[name] end
  end
  table.sort(loads)
  local level, sum = left, unread
  for n, load in ipairs(loads) do
    sum = sum + load
    level = sum / n
    if not loads[n + 1] or level <= loads[n + 1] then break end
  end
  local share = math.max(1, math.ceil(level) - (held[consumer] or 0))
  if share < left then left, spared = share, left - share end
end

local heads, waiting = {}, 0
for level = 1, left > 0 and room > 0 and not waits and #seen or 0 do
  heads[level] = head(level)
  if heads[level] then waiting = waiting + 1 end
end

local passed_over, pass_over = 0, nil
if place then
  --uses chain_of
  if waiting > 0 or accounts then place.weigh(0) end
  -- Those of new entries that are not passed over, and the bytes of the others.
  function pass_over(stream, entries)
    local kept, bytes = {}, 0
    for _, entry in ipairs(entries) do
      if place.passes(stream, entry[1], chain_of(entry)) then
        passed_over, bytes = passed_over + 1, bytes + #(job_of(entry) or '')
      else
        kept[#kept + 1] = entry
      end
    end
    return kept, bytes
  end
end

-- Read the most urgent of the new jobs that have no tenant, or of those of the level `first`. Returns their
-- bytes.
local function read_first(count, first)
  for level = 1, first and 0 or #seen do
    if heads[level] and (not first or heads[level] < heads[first]) then first = level end
  end
  local before = room
  local entries, kept, passed = read(streams[first], count), nil, 0
  if place then kept, passed = pass_over(streams[first], entries) end
  add(streams[first], kept or entries, true)
  if #entries > 0 then seen[first] = entries[#entries][1] end
  if #entries < count then
    heads[first] = nil
  elseif waiting > 1 or accounts then
    heads[first] = head(first)
  end
  if not heads[first] then waiting = waiting - 1 end
  return before - room + passed
end

-- The level of the first new job without a tenant that passes tenants', and its score as if it had one: after
-- those that came in its millisecond. Nil if there is none.
local function first_passing()
  local first
  for level in string.gmatch(passing_levels(accounts), '%d') do
    level = tonumber(level)
    if heads[level] and (not first or heads[level] < heads[first]) then first = level end
  end
  if first then return first, heads[first] * 1024 + 1023 - PASSING end
end

-- Where they stand in the stream: a number that is one more for the next of a millisecond; and those whose own number is
-- too large for that.
local BASE = 1024
local places, at_place, far = {}, {}, {}
local function note_given(entry, ms, number, ...)
  local n = #given + 1
  given[n], number_of[entry] = entry, n
  if place then given_words[n] = {...} else given_outcomes[n] = begin_given(...) end
  local place = ms * BASE + number
  if place < 2 ^ 53 and number + 0 < BASE then
    places[#places + 1], at_place[place] = place, entry
  else
    far[#far + 1] = entry
  end
end

-- Those of them that are claimed, by their place among `given`.
local claimed = {}

-- Read a row of `count` entries. What had come between them is let go again.
local function read_row(first, count)
  local ms, number = math.floor(first / BASE), first % BASE
  redis.call('XGROUP', 'SETID', of_tenants, group, number > 0 and string.format('%d-%d', ms, number - 1)
    or string.format('%d-%s', ms - 1, '18446744073709551615'))
  for _, entry in ipairs(read(of_tenants, text(count))) do
    local n = number_of[entry[1]]
    if n then claimed[n] = entry else redis.call('XACK', of_tenants, group, entry[1]) end
  end
end

-- Claim them: nobody holds them. XCLAIM looks for each from the beginning of its block of the stream. Those that follow
-- each other, as most do that came in one call, are read instead.
local function claim_given()
  local FEW = 3
  for _, place in ipairs(places) do
    if not at_place[place - 1] then
      local after = place + 1
      while at_place[after] do after = after + 1 end
      if after - place > FEW then
        read_row(place, after - place)
      else
        for one = place, after - 1 do far[#far + 1] = at_place[one] end
      end
    end
  end
  if #far > 0 then
    far[#far + 1] = 'FORCE'
    for _, entry in ipairs(redis.call('XCLAIM', of_tenants, group, consumer, '0', unpack(far))) do
      claimed[number_of[entry[1]]] = entry
    end
  end
  -- Not those that somebody has deleted.
  local entries = {}
  for n = 1, #given do
    local is_passed = false
    if place then
      --uses chain_of
      is_passed = claimed[n] and place.passes(of_tenants, given[n], chain_of(claimed[n]))
      if is_passed then
        passed_over = passed_over + 1
        redis.call('HSET', prefix .. 'state:' .. given_words[n][1], 'charged', text(ADVANCE))
      else
        given_outcomes[n] = begin_given(unpack(given_words[n], 1, 4))
      end
    end
    if not is_passed then entries[#entries + 1] = claimed[n] end
  end
  if #entries > 0 then add(of_tenants, entries) end
end

-- Serve tenants, and jobs without one beside them, by virtual time. Returns whether parked jobs are left
-- that nobody has looked at.
local function serve_tenants()
  local MAX_ENDED = 100 -- parked jobs that need no slot any more
  local ended, bytes = 0, 0
  local unnamed = waiting > 0 and turns.unnamed(load, running, owned[#streams])
  turns.begin(left)
  while left > #given and room > bytes and ended < MAX_ENDED do
    local tenant, turn = turns.next()
    local level, due
    if waiting > 0 then level, due = first_passing() end
    if tenant and (waiting == 0 or turn <= (due or unnamed)) then
      local job_id, entry, ms, number, size, epoch, cancel, deadline = turns.give(tenant, now, ARGV[11], ARGV[10])
      if job_id then
        note_given(entry, ms, number, job_id, epoch, cancel, deadline)
        bytes = bytes + size
      else
        ended = ended + 1
      end
    elseif waiting > 0 then
      unnamed = turns.read_unnamed(read_first(1, level), level)
    else
      break
    end
  end
  if #given > 0 then claim_given() end
  give_back(load)
  accounts.close(load)
  mended = mended_lately(accounts, now)
  return ended == MAX_ENDED
end

-- All slots are taken: give the job that is next, if it may have the slot of another.
local function serve_urgent()
  local tenant, turn, first, due
  if accounts then turns.begin(1) end
  if accounts and passes then
    first, due = first_passing()
    tenant, turn = turns.next()
  end
  if tenant and turn < 0 and turn <= (due or 0) then
    local job_id = (ask('ZRANGE', tenant.key, '0', '0') or {})[1]
    local _, level = share_of(job_id and field_of(prefix .. 'state:' .. job_id, 'share'))
    local may = (turn + PASSING) / 1024 < passing_before[level]
    local given_id, entry, ms, number, _, epoch, cancel, deadline
    if may then given_id, entry, ms, number, _, epoch, cancel, deadline = turns.give(tenant, now, ARGV[11], ARGV[10]) end
    if given_id then
      note_given(entry, ms, number, given_id, epoch, cancel, deadline)
      claim_given()
    end
  else
    for level = 1, first and 0 or #seen do
      if heads[level] and (not first or heads[level] < heads[first]) then first = level end
    end
    if first and heads[first] < due_before[first] then
      if accounts then turns.unnamed(load, running, owned[#streams]) end
      local size = read_first(1, first)
      if accounts then turns.read_unnamed(size, true) end
    end
  end
  if accounts then
    give_back(load)
    accounts.close(load)
  end
end

local more = false
if due_before then
  if left > 0 and room > 0 then serve_urgent() end
  waiting = 0
elseif accounts and left > 0 and room > 0 and not waits then
  more = serve_tenants()
end
while left > 0 and room > 0 and waiting > 0 and not more do
  -- If only one stream has entries left, there is nothing to compare: read many at once.
  read_first(waiting == 1 and portion() or 1)
end

left = left + spared
if #taker.begun > 0 then ask('ZADD', running, unpack(taker.begun)) end
-- What has made room gets the slots that others have left.
more = more or stays and not due_before and #fetched > 0
if place then
  place.close()
  -- The slots that were meant for tenants' jobs are still free.
  more = more or passed_over > 0 and left > 0 and accounts ~= nil
end

local listens = false
if due_before then
  redis.call('SET', watching, consumer, 'PX', LISTENER_MS)
  listens = true
elseif #fetched > 0 then
  listens = hand_on(listener, turn, waiting_key, consumer, left == 0)
elseif other_listener(listener, consumer) then
  wait_for_turn(waiting_key)
else
  redis.call('SET', listener, consumer, 'PX', LISTENER_MS)
  listens = true
end
for _, stream in ipairs({of_tenants, wakeup}) do
  local last = listens and any_tenants and (not due_before or passes) and (ask('XREVRANGE', stream, '+', '-', 'COUNT', '1')
    or (accounts or open_book()).insist('XREVRANGE', stream, '+', '-', 'COUNT', '1'))
  seen[#seen + 1] = last and last[1] and last[1][1] or (due_before and not passes) and '' or '0-0'
end
return told({fetched, seen, redelivered, (more or left == 0 or room <= 0) and 1 or 0, listens and 1 or 0, mended, outcomes,
  place and place.next_due() or 0})
