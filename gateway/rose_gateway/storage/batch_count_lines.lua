#!lua flags=allow-oom
-- Count lines that have ended, each as a bit. So a repeat counts nothing twice, and a line that ends
-- otherwise when another runner answers it again is what it was at last.
-- KEYS  state, ended, failed (bitmaps)        ARGV  epoch, runner, line - 1 of one that succeeded, or -line of one
--       that failed, ...
-- Reply: the batch's status, and how many new lines have succeeded and failed; nil if another runner
--        has it
local state, ended, failed = KEYS[1], KEYS[2], KEYS[3]
local known = redis.call('HMGET', state, 'epoch', 'runner', 'status')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then return false end
local new = {[0] = 0, [1] = 0}
for i = 3, #ARGV do
  local bit, is_failure = tonumber(ARGV[i]), 0
  if bit < 0 then bit, is_failure = -bit - 1, 1 end
  if redis.call('SETBIT', ended, bit, 1) == 0 then new[is_failure] = new[is_failure] + 1 end
  redis.call('SETBIT', failed, bit, is_failure)
end
return {known[3], new[0], new[1]}
