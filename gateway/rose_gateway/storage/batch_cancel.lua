#!lua flags=allow-oom
-- Ask for the end of a batch. Its runner ends it; one that comes to its end is left alone.
-- KEYS  state        Reply: its status; nil if there is none
local state = KEYS[1]
local status = redis.call('HGET', state, 'status')
if status ~= 'validating' and status ~= 'in_progress' then return status end
redis.call('HSET', state, 'status', 'cancelling', 'cancelling_at', redis.call('TIME')[1])
return 'cancelling'
