-- Keep a response as a turn of its conversation, for one that goes on from it. A repeat changes nothing.
-- KEYS  conversation, a hash:
--         ID        a turn: "<turn before> <its claim of that> <items, as JSON>", both empty of the first
--         ID>CLAIM  a response, or a turn, that goes on from it
--         ID#       how many of them there are
--         ID!       its response was deleted
-- ARGV  turn, entry, claim, ttl ms
local conversation, turn, entry, claim, ttl = KEYS[1], unpack(ARGV)
redis.call('HSETNX', conversation, turn, entry)
if redis.call('HSETNX', conversation, turn .. '>' .. claim, '') == 1 then
  redis.call('HINCRBY', conversation, turn .. '#', 1)
end
redis.call('PEXPIRE', conversation, ttl)
return 1
