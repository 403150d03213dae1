#!lua
-- Whether Redis takes new jobs. It has no flag, so Redis refuses it at `maxmemory`, as it refuses submit.
-- KEYS  load, so that a cluster asks the right node
return 1
