"""A short run of `tests.vllm.takeover`, which has the long one."""

from collections.abc import Mapping

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.engines import Answer, set_variables
from tests.vllm.takeover import drawn_jobs, run_chain, undisturbed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400), needs_redis_server]

JOBS = drawn_jobs(40, seed=1)


@pytest.fixture(scope="module")
def wanted() -> Mapping[str, Answer]:
    return undisturbed(JOBS)


@pytest.mark.parametrize("chain", ["vllm,vllm", "vllm,rose,vllm"])
def test_every_text_is_the_undisturbed_one(
    broker: EmbeddedBroker, wanted: Mapping[str, Answer], chain: str
) -> None:
    # given: about half of the jobs have any one parameter, and half are greedy
    for name in ("repetition_penalty", "stop", "logprobs", "min_new_tokens", "logit_bias"):
        assert 10 <= sum(name in job.sampling.model_fields_set for job in JOBS) <= 30
    assert sum(job.sampling.temperature == 0 for job in JOBS) == 20
    set_variables()
    # when
    outcome = run_chain(chain, JOBS, wanted, broker.url)
    # then
    assert outcome.differences == []
    assert outcome.moved >= 5
