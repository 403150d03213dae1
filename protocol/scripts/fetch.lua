-- Read at most `count` new entries, the most urgent stream first. XREADGROUP's own COUNT holds
-- for each stream, so one plain call over three streams could return three times as many.
-- KEYS  job streams, most urgent first        ARGV  group, consumer, count
local group, consumer, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found = {}
for _, stream in ipairs(KEYS) do
  if left > 0 then
    local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', stream, '>')
    -- Redis: {{stream, entries}} or false; fakeredis flattens it to {stream, entries} or {}.
    local entries = reply and (type(reply[1]) == 'table' and reply[1][2] or reply[2])
    if entries then
      found[#found + 1] = {stream, entries}
      left = left - #entries
    end
  end
end
return found
