"""The clock of the harness, and a wrong one for the product.

Every process of a run may have a clock of its own that is wrong by a constant. What the harness
writes down is dated by `now`, the machine's clock, so that the evidence is of one time.
"""

import time

now = time.time
_now_ns = time.time_ns


def skew(offset_s: float) -> None:
    """From now on this process' `time.time` is wrong by so much."""
    offset_ns = round(offset_s * 1e9)
    setattr(time, "time", lambda: now() + offset_s)  # noqa: B010 - says that it is on purpose
    setattr(time, "time_ns", lambda: _now_ns() + offset_ns)  # noqa: B010
