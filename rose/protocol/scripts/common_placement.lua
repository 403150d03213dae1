-- Which worker has the beginning of a prompt in its cache. Behind common.lua.
-- The entry of a job may have a field `chain` beside `job`: digests of beginnings of its prompt, the longest first,
-- with the estimated tokens of each: "DIGEST:TOKENS,DIGEST:TOKENS". One that begins with "=" names what the client
-- calls a session, and comes last.
-- A worker that begins on a job notes its longest ones. Whoever hands out a job whose beginning another worker has
-- passes it over: the consumer `aside` owns the entry then, for at most as long as computing the beginning takes, and
-- the other worker is woken. It is a preference: whoever has a free slot takes the entry when that time is over, or
-- when the other worker is full or gone; and `reclaim` takes it from `aside` as from a worker that is silent.
--
-- Keys, behind the prefix of a partition ("rose:{Q:P}:"):
--   placement:new, :old  hash: by digest the name of the worker that holds it, "" where several do; `:since`: since
--                        when `new` is written, in ms. After GENERATION_MS it becomes `old`
--   placement:workers    hash: by name "<slots> <ms of Redis' clock when it was seen>", see announce.lua; "0 0" of one
--                        that takes no new jobs
--   placement:aside      sorted set: "<high, normal, low or tenants> <entry> <worker>", by when any worker may take it
--   placement:turn:NAME  sorted set: not empty where something stands aside for this worker

-- The consumer that owns what was passed over.
local ASIDE = 'aside'

local function chain_of(entry)
  local fields = entry[2]
  for i = #fields - 1, 1, -2 do
    if fields[i] == 'chain' then return fields[i + 1] end
  end
end

-- `words`: "<longest time for which a job is passed over, in ms, 0 for never> <tokens of a prompt that this worker
-- computes in a second>".
local function placement_of(prefix, group, consumer, now, words)
  local GENERATION_MS, MOST_DIGESTS, KEPT, LEAST_MS, MOST_ASIDE, MAX_MS = 300000, 65536, 3, 5, 256, 60000
  local base, jobs = prefix .. 'placement:', prefix .. 'jobs:'
  local new, old, workers, aside = base .. 'new', base .. 'old', base .. 'workers', base .. 'aside'
  local longest, speed = string.match(words, '^(%d+) (%d+)$')
  longest, speed = tonumber(longest), tonumber(speed)
  -- held: entries that each worker owns; apart: those that stand aside for it.
  local holders, since, slots, noted, woken, held, apart, next_due = {}, nil, {}, {}, {}, nil, nil, nil
  local place = {}

  -- Digests and tokens of a chain. Who holds them is in `holders` then: false for nobody.
  local function parse(chain)
    local digests, tokens, missing = {}, {}, {}
    for digest, count in string.gmatch(chain, '([^:,]+):(%d+)') do
      digests[#digests + 1], tokens[#tokens + 1] = digest, tonumber(count)
      if holders[digest] == nil then missing[#missing + 1] = digest end
    end
    if #missing > 0 then
      local recent, rest = ask('HMGET', new, ':since', unpack(missing)) or {}, {}
      since = recent[1]
      for n, digest in ipairs(missing) do
        holders[digest] = recent[n + 1] or false
        if not recent[n + 1] then rest[#rest + 1] = digest end
      end
      local earlier = #rest > 0 and ask('HMGET', old, unpack(rest)) or {}
      for n, digest in ipairs(rest) do holders[digest] = earlier[n] or false end
    end
    return digests, tokens
  end

  -- The worker that holds the longest known beginning, "" for several, nil for nobody; and its tokens.
  local function holder_of(digests, tokens)
    for n, digest in ipairs(digests) do
      if holders[digest] then return holders[digest], tokens[n] end
    end
  end

  -- The slots of a worker that lives; nil for one that does not, or has left.
  local function slots_of(name)
    if slots[name] == nil then
      local count, seen = string.match(field_of(workers, name) or '', '^(%d+) (%d+)$')
      seen = tonumber(seen)
      slots[name] = seen and now - seen < ALIVE_MS and seen - now < ALIVE_MS and tonumber(count) or false
    end
    return slots[name] or nil
  end

  -- What stands aside: {member, kind of its stream, entry, worker, when it is due}, the first that is due first.
  local standing
  function place.aside()
    if standing then return standing end
    standing, apart = {}, {}
    local members = ask('ZRANGE', aside, '0', text(MOST_ASIDE - 1), 'WITHSCORES') or {}
    for n = 1, #members, 2 do
      local kind, entry, name = string.match(members[n], '^(%l+) (%S+) (.*)$')
      if kind then
        standing[#standing + 1] = {members[n], kind, entry, name, tonumber(members[n + 1])}
        apart[name] = (apart[name] or 0) + 1
      else
        redis.call('ZREM', aside, members[n])
      end
    end
    return standing
  end

  -- How many entries each worker owns. `more`: of this one's those that may be passed over yet.
  function place.weigh(more)
    if held then return end
    place.aside()
    held = {}
    for _, kind in ipairs({'high', 'normal', 'low', 'tenants'}) do
      local pending = redis.pcall('XPENDING', jobs .. kind, group)
      if not pending.err and pending[1] > 0 then
        for _, one in ipairs(pending[4]) do held[one[1]] = (held[one[1]] or 0) + tonumber(one[2]) end
      end
    end
    if more then held[consumer] = (held[consumer] or 0) - more end
  end

  local function load_of(name)
    place.weigh()
    return held[name] or 0
  end

  -- Whether any worker may take what stands aside.
  function place.is_free(name, due)
    local count = slots_of(name)
    if not count or load_of(name) >= count then return true end
    if due > now and due <= now + MAX_MS then
      next_due = math.min(next_due or due, due)
      return false
    end
    -- It did not come. Until it says again that it lives nothing is passed over for it.
    redis.call('HSET', workers, name, '0 0')
    slots[name] = false
    return true
  end

  local function wake(name)
    if woken[name] then return end
    woken[name] = true
    local turn = base .. 'turn:' .. name
    ask('ZADD', turn, '0', 'own')
    redis.call('EXPIRE', turn, '60')
    if ask('GET', prefix .. 'idle:listener') == name then
      ask('XADD', prefix .. 'idle:wakeup', 'MAXLEN', '1', '*', 'wakeup', '1')
    end
  end

  -- Pass an entry of this consumer over, if another worker has the beginning of its prompt, has a free slot, and has not
  -- much more to do than this one. Returns whether it was.
  function place.passes(stream, entry, chain)
    if longest == 0 or not chain then return false end
    local name, tokens = holder_of(parse(chain))
    if not name or name == '' or name == consumer then return false end
    local count, patience = slots_of(name), math.min(longest, math.floor(tokens * 1000 / speed))
    if not count or patience < LEAST_MS then return false end
    local load = load_of(name) + (apart[name] or 0)
    if load >= count or load > load_of(consumer) + math.max(2, math.floor(count / 4)) then return false end
    local due = now + patience
    if not ask('ZADD', aside, text(due), string.sub(stream, #jobs + 1) .. ' ' .. entry .. ' ' .. name) then return false end
    redis.call('XCLAIM', stream, group, ASIDE, '0', entry, 'JUSTID')
    apart[name] = (apart[name] or 0) + 1
    next_due = math.min(next_due or due, due)
    wake(name)
    return true
  end

  -- This consumer begins on a job. Returns what `outcome` says besides: who had the beginning of its prompt (own, other,
  -- several, nobody), its tokens, and for how many ms it stood aside.
  function place.begins(chain, outcome, waited)
    if held then held[consumer] = (held[consumer] or 0) + 1 end
    if not chain or string.sub(outcome, 1, 6) ~= 'TAKEN ' then return outcome end
    local digests, tokens = parse(chain)
    local name, count = holder_of(digests, tokens)
    for n, digest in ipairs(digests) do
      local is_session, before = string.sub(digest, 1, 1) == '=', holders[digest]
      if n <= KEPT or is_session then
        local others = before and before ~= consumer and not is_session and (before == '' or slots_of(before))
        holders[digest] = others and '' or consumer
        noted[#noted + 1], noted[#noted + 2] = digest, holders[digest]
      end
    end
    local whose = not name and 'nobody' or name == '' and 'several' or name == consumer and 'own' or 'other'
    return outcome .. string.format(' %s %d %d', whose, count or 0, waited or 0)
  end

  -- Ms until the first entry is due that stands aside for others; 0 if none does.
  function place.next_due()
    return next_due and math.max(1, next_due - now) or 0
  end

  function place.close()
    if #noted == 0 then return end
    local began = tonumber(since or '')
    local turned = began and (now - began >= GENERATION_MS or began > now or redis.call('HLEN', new) >= MOST_DIGESTS)
    if turned then
      redis.call('UNLINK', old)
      redis.call('RENAME', new, old)
    end
    if not ask('HSET', new, unpack(noted)) then return end
    if turned or not began then
      redis.call('HSET', new, ':since', text(now))
      redis.call('EXPIRE', new, text(2 * GENERATION_MS / 1000))
    end
  end

  return place
end
