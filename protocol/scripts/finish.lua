-- End jobs: terminal event, result kept for its time to live, then the entry is acknowledged.
-- KEYS  load; per item: stream, state, tokens
-- ARGV  group, now ms, ttl s; per item: "<epoch> <index> <status> <entry>", event
-- Reply: item number (from 0), outcome, ... of the items that did not simply end: DUP (ended
-- already by this epoch), FENCED, GAP
local load = KEYS[1]
local group, now_ms, ttl_s = unpack(ARGV, 1, 3)
local reply = {}
for item = 0, (#KEYS - 1) / 3 - 1 do
  local stream, state, tokens = unpack(KEYS, item * 3 + 2, item * 3 + 4)
  local epoch, index, status, entry = string.match(ARGV[item * 2 + 4], '^(%d+) (%d+) (%a+) (%S+)$')
  local known = ask('HMGET', state, 'epoch', 'tokens', 'status') or {}
  local outcome
  if known[1] ~= epoch then
    outcome = 'FENCED'
  elseif is_terminal(known[3]) then
    outcome = 'DUP'
  elseif known[2] ~= index then
    outcome = 'GAP'
  else
    end_job(state, tokens, load, status, ARGV[item * 2 + 5], now_ms, ttl_s)
  end
  if not outcome or outcome == 'DUP' then acknowledge(stream, group, entry) end
  if outcome then
    reply[#reply + 1] = item
    reply[#reply + 1] = outcome
  end
end
return reply
