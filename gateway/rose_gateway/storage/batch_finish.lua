#!lua flags=allow-oom
-- End a batch. Its counts stay, its bitmaps and its checkpoint go: the files have
-- what that says.
-- KEYS  state, unfinished, ended, failed, checkpoint        ARGV  id, epoch, runner, status, ttl ms
-- Reply: 1; nil if another runner has it
local state, unfinished, ended, failed, checkpoint = unpack(KEYS)
local known = redis.call('HMGET', state, 'epoch', 'runner', 'completed')
if known[1] ~= ARGV[2] or known[2] ~= ARGV[3] then return false end
if not known[3] then -- else it is a repeat
  local failures = redis.call('BITCOUNT', failed)
  redis.call('HSET', state, 'completed', redis.call('BITCOUNT', ended) - failures, 'failed', failures,
    'status', ARGV[4], ARGV[4] .. '_at', redis.call('TIME')[1])
end
redis.call('PEXPIRE', state, ARGV[5])
redis.call('ZREM', unfinished, ARGV[1])
for _, key in ipairs({ended, failed, checkpoint}) do redis.call('DEL', key) end
return 1
