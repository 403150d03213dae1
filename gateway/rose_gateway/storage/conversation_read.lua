#!lua flags=allow-oom
-- The turns of a conversation up to one of them. They are kept for a while more.
-- KEYS  conversation        ARGV  turn, the most bytes, ttl ms
-- Reply: entries, the last turn first; the id of a turn that is gone; how many bytes they have at least if they are
--        too many
local conversation, turn, most, ttl = KEYS[1], unpack(ARGV)
local entries, bytes = {}, 0
while turn ~= '' do
  local entry = redis.call('HGET', conversation, turn)
  if not entry then return turn end
  bytes = bytes + #entry
  if bytes > tonumber(most) then return bytes end
  entries[#entries + 1] = entry
  turn = string.match(entry, '^(%S*) ')
end
redis.call('PEXPIRE', conversation, ttl)
return entries
