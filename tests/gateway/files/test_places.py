"""How many may download at a time."""

from __future__ import annotations

import pytest

from rose_gateway.errors import ApiError
from rose_gateway.files.places import Places
from rose_gateway.metrics import Metrics


def test_whoever_finds_no_place_is_told_to_come_again() -> None:
    places, metrics = Places(2, "downloads"), Metrics()
    with (
        # given
        places.one(metrics),
        places.one(metrics),
        # when
        pytest.raises(ApiError) as told,
        places.one(metrics),
    ):
        pass
    # then
    hits = metrics.registry.get_sample_value(
        "rose_gateway_limits_hit_total", {"limit": "downloads"}
    )
    assert (told.value.status, hits) == (503, 1)
    assert told.value.retry_after_s is not None


def test_a_place_is_free_again_whatever_became_of_who_had_it() -> None:
    places, metrics = Places(1, "downloads"), Metrics()
    with pytest.raises(LookupError), places.one(metrics):
        raise LookupError

    with places.one(metrics):
        pass
