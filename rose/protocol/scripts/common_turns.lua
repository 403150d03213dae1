-- Whose turn it is. Behind common_tenants.lua and common_parking.lua.
-- `ready` is read in portions and stays as it was until `close`; those that have had their turn in this call stand
-- in `again` from `first` on, the least virtual time first.

local function tenant_turns(accounts)
  local MOST_PORTION = 64
  local turns, insist, states = {}, accounts.insist, accounts.prefix .. 'state:'
  local page, at, read, more, again, first, share, portion = {}, 1, 0, true, {}, 1, 2, MOST_PORTION

  local function before(one, other)
    return one.turn < other.turn or one.turn == other.turn and one.name < other.name
  end

  local function read_page()
    local reply, names = insist('ZRANGE', accounts.ready, text(read), text(read + portion - 1), 'WITHSCORES'), {}
    for n = 1, #reply, 2 do names[#names + 1] = reply[n] end
    accounts.open_all(names)
    page, at, read, more = {}, 1, read + portion, #names == portion
    for n, name in ipairs(names) do
      page[n] = accounts.open(name)
      page[n].turn = tonumber(reply[2 * n])
    end
  end

  -- `count`: of slots that are free.
  function turns.begin(count)
    portion, accounts.turns = math.min(count, MOST_PORTION), insist('ZCARD', accounts.ready)
    share = math.ceil(count / math.max(1, accounts.turns)) + 1
  end

  -- The tenant whose turn it is, and its virtual time, or the score of its next job if that passes; nil if
  -- none may run one more job.
  function turns.next()
    if not page[at] and more then read_page() end
    local tenant, other = page[at], again[first]
    if other and not (tenant and before(tenant, other)) then tenant = other end
    if tenant then return tenant, tenant.turn < 0 and tenant.turn or tenant.vtime end
  end

  -- The next of its jobs that wait; nil if there is none.
  local function next_parked(tenant)
    local queue = tenant.queue
    local job_id = queue and queue[tenant.next]
    if job_id or queue and #queue < tenant.portion then return job_id end
    tenant.portion = queue and 2 * tenant.portion or share
    local taken = tenant.taken or 0
    queue = insist('ZRANGE', tenant.key, text(taken), text(taken + tenant.portion - 1))
    tenant.queue, tenant.next = queue, 1
    return queue[1]
  end

  -- It may have another turn in this call.
  local function queue_again(tenant)
    local job_id = next_parked(tenant)
    if not job_id then
      tenant.look, tenant.due, tenant.parked = false, nil, 0
      return
    end
    tenant.look = true
    if tenant.max_running and tenant.running >= tenant.max_running then return end
    -- Jobs that pass come before its others.
    if tenant.due < 0 then tenant.due = tonumber(insist('ZSCORE', tenant.key, job_id)) end
    tenant.turn = tenant.due < 0 and tenant.due or math.floor(tenant.vtime * 1024)
    -- Most come behind all others.
    local low, high = first, #again + 1
    if high > first and before(again[high - 1], tenant) then low = high end
    while low < high do
      local middle = math.floor((low + high) / 2)
      if before(again[middle], tenant) then low = middle + 1 else high = middle end
    end
    table.insert(again, low, tenant)
  end

  -- A job that needs no slot: somebody has ended it otherwise, or has written into its state.
  local function drop(tenant, job_id, known, late, now, event, ttl_s)
    local state, tokens, _, level = states .. job_id, accounts.prefix .. 'tokens:' .. job_id, share_of(known[3])
    uncount(accounts, tenant, job_id, level, known[5])
    local own = ask('HMGET', state, 'tenant', 'cost', 'bytes') or {}
    settle(accounts, own[1], known[3], own[2], own[3], nil, 0)
    if late then
      end_job(state, tokens, held_by(state), 'failed', event, string.format('%d', now), ttl_s)
    elseif is_terminal(known[1]) then
      bury(state, tokens, ttl_s)
    end
    if known[2] and known[1] ~= 'running' then redis.pcall('XDEL', accounts.stream, known[2]) end
  end

  -- The next job of the tenant whose turn it is, for a worker: its id, its entry and the two numbers of that, bytes,
  -- and of its state epoch, flag of a cancel and deadline. Nil if it needs no slot any more.
  function turns.give(tenant, now, event, ttl_s)
    if again[first] == tenant then first = first + 1 else at = at + 1 end
    local job_id = next_parked(tenant)
    tenant.dirty = true
    if not job_id or tenant.max_running and tenant.running >= tenant.max_running then
      -- It is ready no more only where `shares:ready` was made anew, or its jobs were taken away.
      tenant.was_ready, tenant.look = true, true
      return
    end
    tenant.due, tenant.next, tenant.taken = tenant.turn, tenant.next + 1, (tenant.taken or 0) + 1
    local known = ask('HMGET', states .. job_id, 'status', 'entry', 'share', 'epoch', 'deadline_ms', 'cancel') or {}
    local ms, number = string.match(known[2] or '', '^(%d+)-(%d+)$')
    local waits, deadline = known[1] == 'queued' and ms and #ms < 16 and #number < 16 and known[3], known[5]
    local late = waits and is_count(deadline) and tonumber(deadline) <= now
    if late or not waits then
      drop(tenant, job_id, known, late, now, event, ttl_s)
      return queue_again(tenant)
    end
    local prompt, level, bytes = share_of(waits)
    give_parked(accounts, tenant, prompt, level, job_id, deadline)
    queue_again(tenant)
    return job_id, known[2], ms, number, bytes, known[4], known[6], deadline
  end

  -- Jobs without a tenant compete as one tenant of weight 1. What they use is what was logged and is not of
  -- tenants, the prompts that were read beside parked jobs, and the advance for each that runs.
  -- Where nothing of tenants was left to wait the last time, they begin at the clock; else they only catch
  -- up with it, as a tenant does that comes back. `given`: how many jobs of tenants workers hold.
  function turns.unnamed(load, running, given)
    local all = accounts.clock()
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
    local all = accounts.clock()
    all.changed = true
    if not passed then all.vtime = math.max(all.vtime, all.settled) end
    all.prompts = all.prompts + math.ceil(size / 4)
    all.now = all.now + math.ceil(size / 4) + ADVANCE
    return all.now
  end

  return turns
end
