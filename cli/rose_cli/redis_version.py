"""Which versions of Redis do."""

from __future__ import annotations

import re

#: Scripts run on 6.2. But there Redis may refuse one for want of memory in its middle, and clients
#: cannot tell errors that scripts raise apart, so they would not wait. The users need 7.0, too.
OLDEST = (7, 0)

TOO_OLD = "it must be 7.0 or newer"


def is_too_old(version: str) -> bool | None:
    """None where it cannot be read."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2])) < OLDEST
