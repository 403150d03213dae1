-- Read how one partition stands.
-- KEYS  load, model, dead, workers, job streams, most urgent first, stream of tenants' jobs
-- ARGV  group, alive ms, fields of the hash `model`
-- Reply: {streams, dead letters, queued tokens, {what those fields say}, now ms, tokens ever logged, parked jobs
--        of each priority}; of each stream {entries,
--        oldest entry that is held or "", {{consumer, entries it holds, ms since it was heard of, its
--        slots or ""}, ...}}. A consumer that holds nothing is named if it has been heard of in the
--        last `alive ms`.
local load, model, dead, workers = unpack(KEYS, 1, 4)
local group, alive_ms = ARGV[1], tonumber(ARGV[2])

local function consumers(stream)
  local listed = {}
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local consumer = by_name(info)
    if consumer.pending > 0 or consumer.idle < alive_ms then
      local slots = redis.call('HMGET', workers, consumer.name)[1] or ''
      listed[#listed + 1] = {consumer.name, consumer.pending, consumer.idle, slots}
    end
  end
  return listed
end

local streams = {}
for i = 5, #KEYS do
  local entries, oldest, held = redis.call('XLEN', KEYS[i]), '', {}
  -- Before the first worker there is no group.
  local pending = redis.pcall('XPENDING', KEYS[i], group)
  if not pending.err then oldest, held = pending[2] or '', consumers(KEYS[i]) end
  -- Those of tenants that nobody was given are counted by priority.
  if i == #KEYS then entries = pending.err and 0 or pending[1] end
  streams[#streams + 1] = {entries, oldest, held}
end
local counts = redis.call('HMGET', load, 'tokens', 'generated', 'parked_high', 'parked_normal', 'parked_low')
return {
  streams, redis.call('XLEN', dead), counts[1] or '0', redis.call('HMGET', model, unpack(ARGV, 3)), now_ms(),
  counts[2] or '0', {counts[3] or '0', counts[4] or '0', counts[5] or '0'},
}
