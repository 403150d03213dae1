"""How many may download at a time."""

import pytest

from rose_gateway.errors import ApiError
from rose_gateway.files.files import ConcurrencyLimit
from rose_gateway.metrics import Metrics


def test_whoever_finds_no_place_is_told_to_come_again() -> None:
    limit, metrics = ConcurrencyLimit(2), Metrics()
    with (
        # given
        limit.slot(metrics),
        limit.slot(metrics),
        # when
        pytest.raises(ApiError) as told,
        limit.slot(metrics),
    ):
        pass
    # then
    hits = metrics.registry.get_sample_value(
        "rose_gateway_limits_hit_total", {"limit": "downloads"}
    )
    assert (told.value.status, hits) == (503, 1)
    assert told.value.retry_after_s is not None


def test_a_place_is_free_again_whatever_became_of_who_had_it() -> None:
    limit, metrics = ConcurrencyLimit(1), Metrics()
    with pytest.raises(LookupError), limit.slot(metrics):
        raise LookupError

    with limit.slot(metrics):
        pass
