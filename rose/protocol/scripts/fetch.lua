-- Read at most `count` new entries, the most urgent first, with ageing: a stream's head counts as
-- if it had come `ageing ms` later for each level that its priority is below the first. So nobody
-- is overtaken by a job that came more than levels * ageing after him, and nobody starves.
-- KEYS  job streams, most urgent first        ARGV  group, consumer, count, ageing ms
-- Reply: {{stream, {entry, job or nil, entry, job or nil, ...}}, ...}, where a stream may come several
-- times, and the last entry of each stream that anybody has read: what is new comes after it
local group, consumer, left, ageing = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

-- When the first entry that nobody has read counts as enqueued; nil where there is none.
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

-- Flat, which is cheaper to read than entries with fields.
local function flat(entries)
  local pairs_of = {}
  for n, entry in ipairs(entries) do
    pairs_of[n * 2 - 1], pairs_of[n * 2] = entry[1], job_of(entry)
  end
  return pairs_of
end

local found = {}
while left > 0 and waiting > 0 do
  local first
  for level = 1, #KEYS do
    if heads[level] and (not first or heads[level] < heads[first]) then first = level end
  end
  -- With one stream left there is nothing to compare: read all that is asked for.
  local count = waiting == 1 and left or 1
  local reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', KEYS[first], '>')
  local entries = entries_of(reply)
  found[#found + 1] = {KEYS[first], flat(entries)}
  left = left - #entries
  seen[first] = entries[#entries][1]
  heads[first] = waiting > 1 and head(first, seen[first]) or nil
  if not heads[first] then waiting = waiting - 1 end
end
return {found, seen}
