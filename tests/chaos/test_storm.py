from tests.chaos.short_run import short_run

_PARTS = {"whole", "interrupted", "undisturbed", "forked", "abandoned", "cancelled", "in asyncio"}


def test_clients_live_through_a_short_storm() -> None:
    # when
    told = short_run("tests.chaos.storm", "--seconds", "8", "--seed", "3")
    # then
    assert told["violations"] == []
    assert {part for part in _PARTS if told.get(part)} == _PARTS
