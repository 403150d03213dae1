#!lua flags=allow-oom
-- Say that this worker lives, and what it serves: submitters read the facts. All workers of a queue serve
-- one model. The fingerprint tells models apart; workers that announce none are told apart by name.
-- A script for the same reason as create_groups.lua.
-- KEYS  model, the job stream on which workers show that they live, workers, the key of the model's
--       vocabulary if it has one, which is renewed
-- ARGV  group, consumer, consumer that owns released entries, alive ms, an id that no entry has, mode, slots
--       of this worker, how many of them are for jobs that are placed, "" without placement; field, value, ...
--       mode: "join" is refused if other workers live and serve another model; "replace" makes this
--       model the queue's; "keep" says that this worker still lives
-- Reply: {outcome, the queue's model, its fingerprint or "", "1" if the vocabulary is not there, else "0",
--         the queue's number of partitions, "1" if jobs are placed: all workers do, and there are several; "without NAME"
--         of one that does not}
--        SERVES   this worker's model is the queue's
--        REFUSED  the queue has another model, and workers that live
--        DIVIDED  the queue has another number of partitions, and workers that live; not with "keep"
--        REPLACED the queue has had another model since
local model, stream, workers, vocabulary = unpack(KEYS, 1, 4)
local VOCABULARY_DAYS = 30
local group, consumer, released, alive_ms, no_entry, mode, slots, placement = unpack(ARGV, 1, 8)
local facts = {}
for n = 9, #ARGV, 2 do facts[ARGV[n]] = ARGV[n + 1] end

local function others_live()
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local other = by_name(info)
    local is_worker = other.name ~= consumer and other.name ~= released and other.name ~= ASIDE
    if is_worker and other.idle < tonumber(alive_ms) then return true end
  end
  return false
end

local known = ask('HMGET', model, 'name', 'fingerprint', 'vocabulary', 'partitions', 'placement') or {}
local name, fingerprint = known[1], known[2] or ''
local same = not name or name == facts.name
if fingerprint ~= '' and facts.fingerprint ~= '' then same = fingerprint == facts.fingerprint end
local partitions = known[4] or facts.partitions or ''
if not same and mode == 'join' and others_live() then return {'REFUSED', name, fingerprint, '0', partitions, ''} end
if partitions ~= (facts.partitions or partitions) and mode ~= 'keep' and others_live() then
  return {'DIVIDED', name, fingerprint, '0', partitions, ''}
end
-- Reading its own pending entries resets a consumer's idle time. There is none after the last id.
redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', '1', 'STREAMS', stream, no_entry)
redis.call('HSET', workers, consumer, slots)
if not same and mode == 'keep' then return {'REPLACED', name, fingerprint, '0', partitions, ''} end
local said = known[3]
if mode ~= 'keep' or not name or fingerprint == '' then
  redis.call('HSET', model, unpack(ARGV, 9))
  said = facts.vocabulary
end
local kept = not vocabulary or redis.call('EXPIRE', vocabulary, VOCABULARY_DAYS * 86400) == 1
local found = vocabulary and kept and facts.fingerprint or ''
if vocabulary and said ~= found then redis.call('HSET', model, 'vocabulary', found) end

-- A worker that lives, or has not been forgotten, and does not place jobs.
local function unplaced(placing)
  local names = {}
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do names[#names + 1] = by_name(info).name end
  local known_slots, placed_slots = redis.call('HMGET', workers, unpack(names)), redis.call('HMGET', placing, unpack(names))
  for n, other in ipairs(names) do
    if known_slots[n] and not placed_slots[n] then return other end
  end
end

-- Whether jobs are placed, which `submit` reads: if there is something to choose from, and every worker knows how. A
-- worker that does not is in `workers` alone, and is named. Without the field nobody has asked for placement.
local placed = ''
if placement ~= '' then
  local placing = prefix_of(model) .. 'placement:workers'
  redis.call('HSET', placing, consumer, string.format('%d %d', placement, now_ms()))
  local count, theirs = redis.call('HLEN', workers), redis.call('HLEN', placing)
  if count > 1 and count == theirs then
    placed = '1'
  elseif count > 1 then
    local other = unplaced(placing)
    placed = other and 'without ' .. other or ''
  end
  -- Somebody has taken names out of `workers`: they are said again.
  if theirs > count then redis.call('DEL', placing) end
end
if known[5] ~= placed and (known[5] or placement ~= '') then redis.call('HSET', model, 'placement', placed) end
return {'SERVES', facts.name, facts.fingerprint, kept and '0' or '1', partitions, placed}
