#!lua flags=allow-oom
-- Set the weight and the limits of a tenant, or forget them: then it has weight 1 and no limits.
-- KEYS  load, limits of the tenants        ARGV  tenant, limits as they are stored, "" to forget them
-- Reply: 1 if it had some before, else 0
local load, limits, name, text = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local before
if text == '' then
  before = redis.call('HDEL', limits, name)
else
  before = 1 - redis.call('HSET', limits, name, text)
end
local accounts = tenant_accounts(prefix_of(load))
if accounts.insist('ZSCORE', accounts.heads, name) then accounts.open(name).dirty = true end
accounts.close(load)
return before
