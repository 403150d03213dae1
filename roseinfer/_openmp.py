"""How long OpenMP's threads spin before they sleep. Imported first: it is read when torch loads.

libgomp's threads busy-wait for each other about a millisecond by default. A decode step has
hundreds of short parallel regions; where the cores are shared with anything else, threads then
burn the very time slices that the one they wait for needs, and a step takes ten times as long.
Sleeping at once costs a wake-up for each region. A short spin suits both.
"""

import os

_SPINS = "10000"

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
