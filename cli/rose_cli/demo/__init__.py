"""`rose demo`: the main job on one machine, and a worker killed in the middle of it."""
