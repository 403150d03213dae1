-- Log and publish the tokens of one decode step, for the whole batch at once.
-- KEYS  per item: state, tokens
-- ARGV  per item: "<epoch> <index of the first token> <tokens in the event>", event
-- Reply: item number (from 0), outcome, ... of the items that were not simply stored:
-- CANCEL (stored, and somebody asked to cancel); DUP (a retry: it is stored already); FENCED (the
-- job is not ours any more); GAP (tokens before it are missing, or the log is not what it was)
local reply = {}
for item = 0, #KEYS / 2 - 1 do
  local state, tokens = KEYS[item * 2 + 1], KEYS[item * 2 + 2]
  local epoch, index, count = string.match(ARGV[item * 2 + 1], '^(%d+) (%d+) (%d+)$')
  local event = ARGV[item * 2 + 2]
  local known = ask('HMGET', state, 'epoch', 'tokens', 'cancel', 'status') or {}
  local logged = tonumber(known[2] or '0') or -1
  local after = tonumber(index) + tonumber(count)
  local outcome
  if known[1] ~= epoch then
    outcome = 'FENCED'
  elseif after <= logged then
    outcome = 'DUP'
  elseif tonumber(index) ~= logged or is_terminal(known[4]) then
    outcome = 'GAP'
  elseif not add_event(tokens, after .. '-0', event) then
    outcome = 'GAP'
  else
    redis.call('HSET', state, 'tokens', after)
    redis.call(PUBLISH, channel_of(state), event)
    outcome = known[3] and 'CANCEL'
  end
  if outcome then
    reply[#reply + 1] = item
    reply[#reply + 1] = outcome
  end
end
return reply
