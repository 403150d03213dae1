#!lua flags=allow-oom
-- Say what the workers serve. A script for the same reason as create_groups.lua.
-- KEYS  model        ARGV  field, value, ...
redis.call('HSET', KEYS[1], unpack(ARGV))
return 'OK'
