#!lua flags=allow-oom
-- Give batches that nobody runs to this runner, those first that have waited longest.
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

local function claimable()
  local ids = redis.call('ZRANGEBYSCORE', unfinished, '-inf', now, 'LIMIT', 0, most)
  if #ids > 0 then return ids end
  -- From before Redis' clock was set back.
  return redis.call('ZRANGEBYSCORE', unfinished, now + longest, '+inf', 'LIMIT', 0, most)
end

local claimed = {}
while #claimed < 2 * most do
  local ids = claimable()
  if #ids == 0 then break end
  for _, id in ipairs(ids) do
    local epoch = #claimed < 2 * most and redis.pcall('HEXISTS', prefix .. id, 'status')
    if epoch == 1 then
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
    elseif epoch then -- expired, or not ours
      redis.call('ZREM', unfinished, id)
    end
  end
end
return claimed
