-- Whose turn it is. Behind common_tenants.lua and common_parking.lua.
-- `ready` is read in portions and stays as it was until `close`; those that have had their turn in this call stand
-- in `again`, the least virtual time last.

-- Whether a tenant's only parked job may begin at once: nobody else waits for a turn.
local function is_alone(book, tenant)
  return tenant.parked == 1 and tenant.ready and book.insist('ZCARD', book.ready) == 1
end

local function tenant_turns(book)
  local MOST_PORTION = 64
  local turns, prefix, insist = {}, book.prefix, book.insist
  local page, at, read, again, share, portion = nil, 1, 0, {}, 2, MOST_PORTION

  local function before(one, other)
    return one.turn < other.turn or one.turn == other.turn and one.name < other.name
  end

  local function first_unserved()
    if not page or at > #page and #page == 2 * portion then
      page, at = insist('ZRANGE', book.ready, read, read + portion - 1, 'WITHSCORES'), 1
      read = read + portion
      local names = {}
      for n = 1, #page, 2 do names[#names + 1] = page[n] end
      book.open_all(names)
    end
    if page[at] then return book.open(page[at]), tonumber(page[at + 1]) end
  end

  -- `count`: of slots that are free.
  function turns.begin(count)
    portion = math.min(count, MOST_PORTION)
    share = math.ceil(count / math.max(1, insist('ZCARD', book.ready))) + 1
  end

  -- The tenant whose turn it is, and its virtual time, or the score of its next job if that passes; nil if
  -- none may run one more job.
  function turns.next()
    local tenant, turn = first_unserved()
    if tenant then tenant.turn = turn end
    local other = again[#again]
    if other and not (tenant and before(tenant, other)) then tenant = other end
    return tenant, tenant and (tenant.turn < 0 and tenant.turn or tenant.vtime)
  end

  -- The next of its jobs that wait; nil if there is none.
  local function next_parked(tenant)
    local queue = tenant.queue
    if not queue or queue[tenant.next] == nil and #queue == tenant.portion then
      tenant.portion = queue and 2 * tenant.portion or share
      local taken = tenant.taken or 0
      queue = insist('ZRANGE', tenant.key, taken, taken + tenant.portion - 1)
      tenant.queue, tenant.next = queue, 1
    end
    return queue[tenant.next]
  end

  -- It may have another turn in this call.
  local function queue_again(tenant)
    local job_id = next_parked(tenant)
    tenant.look, tenant.due = job_id ~= nil, job_id and tenant.due
    if not job_id then tenant.parked = 0 end
    if not job_id or tenant.max_running and tenant.running >= tenant.max_running then return end
    -- Jobs that pass come before its others.
    if tenant.due < 0 then tenant.due = tonumber(insist('ZSCORE', tenant.key, job_id)) end
    tenant.turn = tenant.due < 0 and tenant.due or math.floor(tenant.vtime * 1024)
    local low, high = 1, #again + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if before(tenant, again[middle]) then low = middle + 1 else high = middle end
    end
    table.insert(again, low, tenant)
  end

  -- A job that needs no slot: somebody has ended it otherwise, or a worker of the version before has it.
  local function drop(tenant, job_id, known, late, now, event, ttl_s)
    local state, tokens, _, level = prefix .. 'state:' .. job_id, prefix .. 'tokens:' .. job_id, share_of(known[3])
    book.uncount(tenant, job_id, level, known[5])
    local own = ask('HMGET', state, 'tenant', 'cost', 'bytes') or {}
    book.settle(own[1], known[3], own[2], own[3], nil, 0)
    if late then
      end_job(state, tokens, held_by(state), 'failed', event, string.format('%d', now), ttl_s)
    elseif is_terminal(known[1]) then
      bury(state, tokens, ttl_s)
    end
    if known[2] and known[1] ~= 'running' then redis.pcall('XDEL', book.stream, known[2]) end
  end

  -- The next job of the tenant whose turn it is, for a worker: its id, {entry and its two numbers}, bytes, and of its
  -- state epoch, flag of a cancel and deadline. Nil if it needs no slot any more.
  function turns.give(tenant, now, event, ttl_s)
    if again[#again] == tenant then again[#again] = nil else at = at + 2 end
    local job_id = next_parked(tenant)
    tenant.dirty = true
    if not job_id or tenant.max_running and tenant.running >= tenant.max_running then
      -- It is ready no more only where `shares:ready` was made anew, or its jobs were taken away.
      tenant.was_ready, tenant.look = true, true
      return
    end
    tenant.due, tenant.next, tenant.taken = tenant.turn, tenant.next + 1, (tenant.taken or 0) + 1
    local known = ask('HMGET', prefix .. 'state:' .. job_id, 'status', 'entry', 'share', 'epoch', 'deadline_ms', 'cancel') or {}
    local ms, number = string.match(known[2] or '', '^(%d+)-(%d+)$')
    local waits, deadline = known[1] == 'queued' and ms and #ms < 16 and #number < 16 and known[3], known[5]
    local late = waits and is_count(deadline) and tonumber(deadline) <= now
    if late or not waits then
      drop(tenant, job_id, known, late, now, event, ttl_s)
      return queue_again(tenant)
    end
    local prompt, level, bytes = share_of(waits)
    book.tick(tenant)
    book.give(tenant, prompt, level, job_id, deadline)
    queue_again(tenant)
    return job_id, {known[2], tonumber(ms), tonumber(number)}, bytes, known[4], known[6], deadline
  end

  -- Jobs without a tenant compete as one tenant of weight 1. What they use is what was logged and is not of
  -- tenants, the prompts that were read beside parked jobs, and the advance for each that runs.
  -- Where nothing of tenants was left to wait the last time, they begin at the clock; else they only catch
  -- up with it, as a tenant does that comes back. `given`: how many jobs of tenants workers hold.
  function turns.unnamed(load, running, given)
    local all = book.clock()
    local logged = redis.call('HMGET', load, 'generated', 'generated_tenants')
    local own = math.max(0, redis.call('ZCARD', running) - given)
    local used = (tonumber(logged[1] or '') or 0) - (tonumber(logged[2] or '') or 0) + all.prompts
    if all.waits ~= 'tenants' or all.unnamed + used < all.vtime then
      all.unnamed, all.changed = all.vtime - used, true
    end
    all.settled = all.unnamed + used
    all.now = all.settled + own * ADVANCE
    return all.now
  end

  -- One of them was read. `passed`: before its turn.
  function turns.read_unnamed(size, passed)
    local all = book.clock()
    all.changed = true
    if not passed then all.vtime = math.max(all.vtime, all.settled) end
    all.prompts = all.prompts + math.ceil(size / 4)
    all.now = all.now + math.ceil(size / 4) + ADVANCE
    return all.now
  end

  -- What waits after a fetch, which has been closed: "tenants" if a tenant is ready that has got no slot, else "".
  function turns.note_waits()
    local waits = insist('ZCARD', book.ready) > 0 and 'tenants' or ''
    if waits ~= book.clock().waits then redis.call('HSET', prefix .. 'shares:clock', 'waits', waits) end
  end

  return turns
end
