#!lua flags=allow-oom
-- Give batches that nobody runs to this runner: first those of the owner with the fewest running ones, and of
-- these the one that has waited longest. So an owner with a thousand batches delays another's one by one turn.
-- KEYS  unfinished (sorted set: ids, by when the lease of their runner ends, in ms)
-- ARGV  runner, which no other claim names, lease ms, how many at most, the longest lease in ms, what names of
--       states begin with
-- A runner whose lease has ended, and that has not released the batch, counts as a lapse, and as a failure of the
-- line that it was preparing.
-- Reply: id, epoch, ... Each claim raises the epoch. By both the scripts know an earlier runner: a failover may
-- forget a claim, and the next one has the same epoch.
local unfinished, runner, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local most, longest, prefix = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local now = now_ms()

local MOST_LOOKED_AT = 10000

local function owner_of(id)
  local owner = redis.pcall('HGET', prefix .. id, 'owner')
  return type(owner) == 'string' and owner or ''
end

local due = redis.call('ZRANGEBYSCORE', unfinished, '-inf', now, 'LIMIT', 0, MOST_LOOKED_AT)
if #due == 0 then -- From before Redis' clock was set back.
  due = redis.call('ZRANGEBYSCORE', unfinished, now + longest, '+inf', 'LIMIT', 0, MOST_LOOKED_AT)
end
if #due == 0 then return {} end

local running, waiting, owners = {}, {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', unfinished, '(' .. now, '(' .. now + longest, 'LIMIT', 0,
    MOST_LOOKED_AT)) do
  local owner = owner_of(id)
  running[owner] = (running[owner] or 0) + 1
end
for position, id in ipairs(due) do
  local owner = owner_of(id)
  if not waiting[owner] then
    waiting[owner] = {next = 1}
    owners[#owners + 1] = owner
  end
  table.insert(waiting[owner], {id = id, position = position})
end

-- The owner whose turn it is.
local function next_owner()
  local best, best_running, best_position
  for _, owner in ipairs(owners) do
    local first = waiting[owner][waiting[owner].next]
    local runs = running[owner] or 0
    if first and (not best or runs < best_running
        or (runs == best_running and first.position < best_position)) then
      best, best_running, best_position = owner, runs, first.position
    end
  end
  return best
end

local claimed = {}
while #claimed < 2 * most do
  local owner = next_owner()
  if not owner then break end
  local queue = waiting[owner]
  local id = queue[queue.next].id
  queue.next = queue.next + 1
  local known = redis.pcall('HEXISTS', prefix .. id, 'status')
  if known == 1 then
    local state = prefix .. id
    if redis.call('HGET', state, 'running') == '1' then -- its runner has gone without a word
      redis.call('HINCRBY', state, 'lapses', 1)
      local line = redis.call('HGET', state, 'preparing')
      if line and line ~= '' then redis.call('HINCRBY', state, 'line:' .. line, 1) end
    end
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = redis.call('HINCRBY', state, 'epoch', 1)
    redis.call('HSET', state, 'runner', runner, 'running', 1, 'preparing', '')
    redis.call('ZADD', unfinished, now + lease, id)
    running[owner] = (running[owner] or 0) + 1
  else -- expired, or not ours
    redis.call('ZREM', unfinished, id)
  end
end
return claimed
