#!lua flags=allow-oom
-- Let the next idle worker listen: this one has heard of a job, or does something else now.
-- KEYS  listener, turn, waiting
-- ARGV  consumer, "leaves" if it cannot listen itself where nobody else waits
-- Reply: 1 if it goes on listening, else 0
return hand_on(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2] == 'leaves') and 1 or 0
