"""A short run over HTTP: some of every fault, over TLS, and nothing lost."""

from tests.chaos.short_run import short_run
from tests.conftest import needs_redis_server


@needs_redis_server
def test_a_short_run_over_http_survives_some_of_every_fault() -> None:
    # when
    numbers = ["--responses", "30", "--chats", "15", "--replays", "10", "--seed", "2"]
    result = short_run("tests.chaos.http", *numbers, "--tls")
    # then
    assert set(result["rules"].values()) == {0}
    assert result["responses"] + result["chats"] >= 45
    assert result["replays"] == 10
    assert all(result["faults"].values())
