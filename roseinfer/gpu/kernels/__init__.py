"""Everything that Triton compiles.

It all runs in Triton's interpreter too, which is how it is tested where there is no GPU.
"""

import triton

INTERPRETED = bool(triton.knobs.runtime.interpret)
