-- A snapshot of one partition.
-- KEYS  load, model, dead, job streams, most urgent first        ARGV  group
-- Reply: for each stream {entries, oldest entry that is held or "", {{consumer, entries it holds},
-- ...}}; dead letters; queued tokens; {model's name, its context}
local load, model, dead = KEYS[1], KEYS[2], KEYS[3]
local streams = {}
for i = 4, #KEYS do
  -- Before the first worker there is no group.
  local pending = redis.pcall('XPENDING', KEYS[i], ARGV[1])
  local oldest = not pending.err and pending[2] or ''
  local held = not pending.err and pending[4] or {}
  streams[#streams + 1] = {redis.call('XLEN', KEYS[i]), oldest, held}
end
local tokens = redis.call('HGET', load, 'tokens') or '0'
return {streams, redis.call('XLEN', dead), tokens, redis.call('HMGET', model, 'name', 'context_tokens')}
