#!lua flags=allow-oom
-- A response was deleted. Turns go that no other response needs.
-- KEYS  conversation        ARGV  response, the turn before it and its claim of that, both empty if there is none
local conversation, response, turn, claim = KEYS[1], unpack(ARGV)
if redis.call('HEXISTS', conversation, response) == 1 then -- others go on from it
  redis.call('HSET', conversation, response .. '!', '')
  return 1
end
while turn ~= '' and redis.call('HDEL', conversation, turn .. '>' .. claim) == 1 do
  if redis.call('HINCRBY', conversation, turn .. '#', -1) > 0 then break end
  local entry = redis.call('HGET', conversation, turn)
  local is_deleted = redis.call('HDEL', conversation, turn .. '!') == 1
  redis.call('HDEL', conversation, turn, turn .. '#')
  -- A response that is still stored may be gone on from, and needs the turn before it.
  if not entry or not is_deleted then break end
  turn, claim = string.match(entry, '^(%S*) (%S*) ')
end
return 1
