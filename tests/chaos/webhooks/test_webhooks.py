"""A short run of webhooks whose gateways and receiver are killed, and what its check finds."""

from typing import Any

import pytest

from tests.chaos.short_run import short_run
from tests.chaos.webhooks.check import Rule, check_notes
from tests.chaos.webhooks.receiver import Note
from tests.conftest import needs_redis_server


@needs_redis_server
def test_a_few_webhooks_survive_the_death_of_gateways_and_of_their_receiver() -> None:
    # when
    numbers = ["--webhooks", "50", "--gateway-kills", "3", "--receiver-kills", "1", "--seed", "3"]
    result = short_run("tests.chaos.webhooks", *numbers, "--rotations", "1")
    # then
    assert set(result["rules"].values()) == {0}
    assert result["told"] == 50
    assert result["gateway kills"] == 3
    assert result["receiver kills"] == 1


def note(mood: Any = "take", webhook_id: str = "evt_1", **changes: Any) -> Note:
    event = {"id": "evt_1", "type": "batch.failed", "data": {"id": "batch_1"}, **changes}
    return Note(webhook_id, event, mood)


ENDS = {"batch_1": "batch.failed"}


def test_nothing_is_found_in_what_is_right() -> None:
    assert list(check_notes([note("fail"), note("take and drop"), note()], ENDS)) == []


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        pytest.param([], Rule.LOST, id="nothing came"),
        pytest.param([note("fail"), note("drop")], Rule.LOST, id="nothing was taken"),
        pytest.param([note(), Note("evt_1", None, "take")], Rule.FORGED, id="another's signature"),
        pytest.param([note(), note("take", "evt_2", id="evt_2")], Rule.DOUBLED, id="two ids"),
        pytest.param([note(type="batch.completed")], Rule.WRONG, id="another end"),
        pytest.param([note(id="evt_2")], Rule.WRONG, id="another's event"),
    ],
)
def test_what_is_wrong_is_found(found: list[Note], rule: Rule) -> None:
    assert rule in {finding.rule for finding in check_notes(found, ENDS)}
