-- Forget consumers that hold nothing and have been silent for long: workers that were killed say
-- no good-bye. In one script, since deleting one that has just been given an entry would lose it.
-- KEYS  job streams        ARGV  group, idle ms
-- Reply: how many were forgotten
local forgotten = 0
for _, stream in ipairs(KEYS) do
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, ARGV[1])) do
    local named = {}
    for i = 1, #info, 2 do named[info[i]] = info[i + 1] end
    if named['pending'] == 0 and named['idle'] >= tonumber(ARGV[2]) then
      redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], named['name'])
      forgotten = forgotten + 1
    end
  end
end
return forgotten
