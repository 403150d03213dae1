-- What ends jobs from outside. Behind common.lua and common_parking.lua.

-- End a job, whichever worker has it. Its entry stays until the next take acknowledges it, since XDEL of an
-- undelivered entry would break the group's lag. Until then nothing of the job expires: without its state that take
-- would begin it again. That of a parked job goes at once. `logged`: tokens in its log, where `event` stands.
local function end_from_outside(state, tokens, load, status, event, ttl_s, logged)
  local known = redis.call('HMGET', state, 'bytes', 'tenant')
  local accounts, now = known[2] and tenant_accounts(prefix_of(state)), now_ms()
  local was_parked = accounts and end_parked(accounts, state, status, event, now, ttl_s)
  if not was_parked then
    end_job(state, tokens, held_by(state), status, event, string.format('%d', now))
    if accounts then settle_state(accounts, state, logged) end
  end
  give_back(load)
  if accounts then accounts.close(load) end
  if was_parked then return end
  -- The queue's limits count entries, but not those of jobs that have ended.
  local bytes = is_count(known[1]) and known[1] or '0'
  redis.call('HSET', state, 'tombstone', bytes)
  add_to(load, 'cancelled', 1)
  add_to(load, 'cancelled_bytes', tonumber(bytes))
end

-- Stop a job that has not ended. One that no worker has begun on ends at once. Returns whether it has; else its
-- worker will end it.
local function stop_job(state, tokens, load, message, event, ttl_s)
  local known = redis.call('HMGET', state, 'status', 'tokens')
  redis.call('HSET', state, 'cancel', '1')
  if known[1] ~= 'queued' or (known[2] or '0') ~= '0' then
    publish(prefix_of(state) .. 'control:' .. DATABASE, message)
    return false
  end
  end_from_outside(state, tokens, load, 'cancelled', event, ttl_s, 0)
  return true
end
