"""A short run of a batch whose runners and workers are killed."""

import pytest

from tests.chaos.short_run import short_run
from tests.conftest import needs_redis_server


@pytest.mark.parametrize(
    "options", [["--endpoint", "/v1/completions"], ["--endpoint", "/v1/embeddings", "--chat"]]
)
@needs_redis_server
def test_a_short_batch_survives_the_death_of_runners_and_workers(options: list[str]) -> None:
    # when
    numbers = ["--lines", "150", "--runner-kills", "2", "--worker-kills", "2", "--seed", "3"]
    result = short_run("tests.chaos.batch", *options, *numbers)
    # then
    assert set(result["rules"].values()) == {0}
    assert result["output"] + result["errors"] == 150
    assert result["runner kills"] >= 1
    assert result["worker kills"] >= 1
