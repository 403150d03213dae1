-- What ends jobs from outside. Behind common.lua and common_parking.lua.

-- Stop a job that has not ended. One that no worker has begun on ends at once. Its entry stays until the
-- next take acknowledges it, since XDEL of an undelivered entry would break the group's lag. Until then
-- nothing of the job expires: without its state that take would begin it again. That of a parked job goes at once.
-- Returns whether it has ended; else its worker will end it.
local function stop_job(state, tokens, load, message, event, ttl_s)
  local known = redis.call('HMGET', state, 'status', 'tokens', 'bytes', 'tenant')
  redis.call('HSET', state, 'cancel', '1')
  if known[1] ~= 'queued' or (known[2] or '0') ~= '0' then
    publish(prefix_of(state) .. 'control:' .. DATABASE, message)
    return false
  end
  local book, now = known[4] and tenant_book(prefix_of(state)), now_ms()
  local was_parked = book and end_parked(book, state, 'cancelled', event, now, ttl_s)
  if not was_parked then
    end_job(state, tokens, held_by(state), 'cancelled', event, string.format('%d', now))
    if book then settle_state(book, state, 0) end
  end
  give_back(load)
  if book then book.close(load) end
  if was_parked then return true end
  -- The queue's limits count entries, but not those of cancelled jobs.
  local bytes = is_count(known[3]) and known[3] or '0'
  redis.call('HSET', state, 'tombstone', bytes)
  add_to(load, 'cancelled', 1)
  add_to(load, 'cancelled_bytes', tonumber(bytes))
  return true
end
