#!lua flags=allow-oom
-- Give events that are due to whoever delivers them. If it says nothing until its lease ends, they are due again.
-- KEYS  of each endpoint: webhook_due, webhook_events, webhook_failures, webhook_dead
-- ARGV  lease ms, the longest pause or lease in ms, of each endpoint: how many at most
-- Reply: the time in ms, when the lease ends; of each endpoint: how many wait, how many are dead, {id, body, failures
--        or "", ...}
local lease, longest = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()
local reply = {now, now + lease}
for i = 1, #KEYS / 4 do
  local due, events, failures, dead = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
  local most, claimed = ARGV[i + 2], {}
  local ids = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)
  if #ids == 0 then -- From before Redis' clock was set back.
    ids = redis.call('ZRANGEBYSCORE', due, now + longest, '+inf', 'LIMIT', 0, most)
  end
  for _, id in ipairs(ids) do
    local body = redis.call('HGET', events, id)
    if body then
      redis.call('ZADD', due, text(now + lease), id)
      claimed[#claimed + 1], claimed[#claimed + 2] = id, body
      claimed[#claimed + 1] = redis.call('HGET', failures, id) or ''
    else
      redis.call('ZREM', due, id)
    end
  end
  reply[#reply + 1] = {redis.call('ZCARD', due), redis.call('ZCARD', dead), claimed}
end
return reply
