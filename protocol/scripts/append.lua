-- Log and publish the tokens of one decode step, for the whole batch at once.
-- KEYS  per item: state, tokens
-- ARGV  per item: epoch, index of the first token, tokens in the event, channel, event
-- Reply per item: OK; OK_CANCEL (stored, and somebody asked to cancel); DUP (a retry: it is
-- stored already); FENCED (the job is not ours any more); GAP (tokens before it are missing)
local reply = {}
for item = 0, #KEYS / 2 - 1 do
  local state, tokens = KEYS[item * 2 + 1], KEYS[item * 2 + 2]
  local epoch, index, count, channel, event = unpack(ARGV, item * 5 + 1, item * 5 + 5)
  local known = redis.call('HMGET', state, 'epoch', 'tokens', 'cancel', 'status')
  local logged = tonumber(known[2] or '0')
  local after = tonumber(index) + tonumber(count)
  local outcome
  if known[1] ~= epoch then
    outcome = 'FENCED'
  elseif after <= logged then
    outcome = 'DUP'
  elseif tonumber(index) ~= logged or is_terminal(known[4]) then
    outcome = 'GAP'
  else
    redis.call('XADD', tokens, after .. '-0', 'event', event)
    redis.call('HSET', state, 'tokens', after)
    redis.call('PUBLISH', channel, event)
    outcome = known[3] and 'OK_CANCEL' or 'OK'
  end
  reply[item + 1] = outcome
end
return reply
