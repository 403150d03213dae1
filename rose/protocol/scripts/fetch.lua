#!lua flags=allow-oom
-- Read at most `count` new entries, the most urgent first. A stream's head counts as if it had come
-- `ageing ms` later for each level that its priority is below the first. So a job is never overtaken by
-- one that came more than levels * ageing later, and no job starves.
-- KEYS  job streams, most urgent first        ARGV  group, consumer, count, ageing ms
-- Reply: {{{stream, {entry, job or nil, entry, job or nil, ...}}, ...}, {last entry read, ...}}. A
--        stream may come several times. The second list has the last entry of each stream that anybody
--        has read: new entries come after it.
local group, consumer, left, ageing = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

-- The time that the first unread entry counts as enqueued; nil if there is none.
local function head(level, last)
  local entry = redis.call('XRANGE', KEYS[level], '(' .. last, '+', 'COUNT', 1)[1]
  return entry and tonumber(string.match(entry[1], '^%d+')) + (level - 1) * ageing
end

local heads, seen, waiting = {}, {}, 0
for level = 1, #KEYS do
  seen[level] = last_delivered(KEYS[level], group)
  if not seen[level] then return redis.error_reply('NOGROUP no group ' .. group .. ' of ' .. KEYS[level]) end
  heads[level] = head(level, seen[level])
  if heads[level] then waiting = waiting + 1 end
end

-- A flat list of ids and jobs, which a client parses faster than entries with fields.
local function flat(entries)
  local list = {}
  for n, entry in ipairs(entries) do
    list[n * 2 - 1], list[n * 2] = entry[1], job_of(entry)
  end
  return list
end

local fetched = {}
while left > 0 and waiting > 0 do
  local first
  for level = 1, #KEYS do
    if heads[level] and (not first or heads[level] < heads[first]) then first = level end
  end
  -- If only one stream has entries left, there is nothing to compare: read all at once.
  local count = waiting == 1 and left or 1
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', KEYS[first], '>')
  local entries = entries_of(reply)
  fetched[#fetched + 1] = {KEYS[first], flat(entries)}
  left = left - #entries
  seen[first] = entries[#entries][1]
  heads[first] = waiting > 1 and head(first, seen[first]) or nil
  if not heads[first] then waiting = waiting - 1 end
end
return {fetched, seen}
