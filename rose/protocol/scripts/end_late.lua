#!lua flags=allow-oom
-- End a job whose deadline has passed where no worker does: whoever asks for the job calls this.
-- KEYS  state, tokens, load
-- ARGV  event (failed at that token, its deadline has passed), tokens in the log, ms for which a job that runs is left
--       to its worker, ttl s
-- Reply: ms after which to call again; 0 if there is no need: it has ended, or has no deadline
local state, tokens, load = unpack(KEYS)
local event, logged, grace, ttl_s = unpack(ARGV)
local AGAIN_MS = 1000

local known = ask('HMGET', state, 'status', 'deadline_ms', 'tokens') or {}
if not known[1] or is_terminal(known[1]) or not is_count(known[2]) then return 0 end
local left = known[2] + (known[1] == 'running' and grace or 0) - now_ms()
if left > 0 then return left end
-- The caller has not seen its last tokens yet.
if (known[3] or '0') ~= logged then return AGAIN_MS end
end_from_outside(state, tokens, load, 'failed', event, ttl_s, tonumber(logged))
return told(0)
