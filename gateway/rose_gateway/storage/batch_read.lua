-- All that is known of batches, at one moment.
-- KEYS  of each batch: state, ended, failed
-- Reply: of each: its fields, lines that have ended, lines that have failed; 0 for one that cannot be read
local reply = {}
for i = 1, #KEYS, 3 do
  local fields = redis.pcall('HGETALL', KEYS[i])
  local ended, failed = redis.pcall('BITCOUNT', KEYS[i + 1]), redis.pcall('BITCOUNT', KEYS[i + 2])
  local readable = not fields.err and type(ended) == 'number' and type(failed) == 'number'
  reply[#reply + 1] = readable and {fields, ended, failed} or 0
end
return reply
