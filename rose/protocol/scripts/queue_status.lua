-- Read how one partition stands.
-- KEYS  load, model, dead, job streams, most urgent first        ARGV  group, alive ms
-- Reply: {streams, dead letters, queued tokens, {model's name, its context}, now ms}; of each stream {entries,
--        oldest entry that is held or "", {{consumer, entries it holds}, ...}}. A consumer that holds
--        nothing is named if it has been heard of in the last `alive ms`.
local load, model, dead = KEYS[1], KEYS[2], KEYS[3]
local group, alive_ms = ARGV[1], tonumber(ARGV[2])

local function consumers(stream)
  local listed = {}
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local consumer = by_name(info)
    if consumer.pending > 0 or consumer.idle < alive_ms then
      listed[#listed + 1] = {consumer.name, consumer.pending}
    end
  end
  return listed
end

local streams = {}
for i = 4, #KEYS do
  local entries, oldest, held = redis.call('XLEN', KEYS[i]), '', {}
  -- Before the first worker there is no group.
  local pending = redis.pcall('XPENDING', KEYS[i], group)
  if not pending.err then oldest, held = pending[2] or '', consumers(KEYS[i]) end
  streams[#streams + 1] = {entries, oldest, held}
end
local tokens = redis.call('HMGET', load, 'tokens')[1] or '0'
return {streams, redis.call('XLEN', dead), tokens, redis.call('HMGET', model, 'name', 'context_tokens'), now_ms()}
