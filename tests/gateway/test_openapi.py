"""The gateway answers as its OpenAPI document says, whatever it is asked: a little of schemathesis.

`make fuzz-http` is the long run.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.fuzz.hostile import attack
from tests.fuzz.http import STEADY, answers, fuzz, keyed_deployment
from tests.support.gateway import Deployment


@pytest.mark.timeout(900)  # on a busy machine
def test_no_request_gets_an_answer_that_is_not_documented() -> None:
    with keyed_deployment() as (deployment, secret):
        for plain in (True, False):
            outcome = fuzz(deployment, secret, examples=5, seed=1, plain=plain, phases="fuzzing")

            assert outcome.failures == [], outcome.output
            assert outcome.operations >= 14
            assert outcome.cases >= 60
        counts = answers(deployment)

    assert {"200", "400", "401", "404"} <= set(counts), "not all that was meant to be tried"
    assert "500" not in counts


@pytest.mark.timeout(900)  # on a busy machine
def test_hostile_requests_cost_little_and_hold_up_no_stream() -> None:
    with keyed_deployment(**STEADY) as (deployment, secret):
        said = attack(deployment, count=60, seed=1, secret=secret)

    assert said.problems == [], said
    assert {400, 200} <= set(said.statuses), said


def test_a_generator_of_clients_can_name_all_parameters_and_classes(deployment: Deployment) -> None:
    # when
    document = httpx.get(f"{deployment.origin}/openapi.json", timeout=90).json()
    # then: as openapi-python-client names them
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", ())
            names = Counter((p["in"], re.sub(r"\W+", "", p["name"])) for p in parameters)
            classes = Counter(titles_of_objects(operation))
            assert set((names + classes).values()) <= {1}, f"{method} {path}: {names} {classes}"


def titles_of_objects(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "properties" in value and isinstance(value.get("title"), str):
            yield value["title"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from titles_of_objects(item)
