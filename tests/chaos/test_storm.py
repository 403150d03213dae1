from tests.chaos.short_run import short_run
from tests.chaos.storm import PARTS


def test_clients_live_through_a_short_storm() -> None:
    # when
    told = short_run("tests.chaos.storm", "--seconds", "8", "--seed", "3")
    # then
    assert told["violations"] == []
    assert told.keys() >= PARTS
