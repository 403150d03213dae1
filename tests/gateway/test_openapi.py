"""The door answers as its OpenAPI document says, whatever it is asked: a little of schemathesis.

`make fuzz-http` is the long run.
"""

from __future__ import annotations

import pytest

from tests.fuzz.http import answers, fuzz_door, keyed_door


@pytest.mark.timeout(900)  # on a busy machine
def test_no_request_gets_an_answer_that_is_not_documented() -> None:
    with keyed_door() as (door, secret):
        for plain in (True, False):
            outcome = fuzz_door(door, secret, examples=8, seed=1, plain=plain, phases="fuzzing")

            assert outcome.failures == [], outcome.output
            assert outcome.operations >= 14
            assert outcome.cases >= 60
        counts = answers(door)

    assert {"200", "400", "401", "404"} <= set(counts), "not all that was meant to be tried"
    assert "500" not in counts
