"""The engine by itself and in its service, beside its peers."""

import roseinfer  # noqa: F401 - before torch: it sets how long threads spin
