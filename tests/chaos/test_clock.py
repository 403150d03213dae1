"""The product may have a wrong clock; what the harness writes down is dated by the right one."""

import subprocess
import sys
import time

_LATER = """
import time
from tests.chaos import clock
clock.skew(100.0)
from rose.protocol.calls import now_ms
print(now_ms() / 1000, time.time(), time.time_ns() / 1e9, clock.now())
"""


def test_the_product_has_the_wrong_time_and_the_harness_the_right_one() -> None:
    # when
    said = subprocess.run([sys.executable, "-c", _LATER], capture_output=True, check=True).stdout
    # then
    *wrong, right = (float(word) - time.time() for word in said.split())
    assert all(90 < offset < 101 for offset in wrong)
    assert -10 < right < 1
