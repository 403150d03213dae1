"""`rose webhooks`: an endpoint's life, and what is said of mistakes."""

import json
import os
from typing import Any

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.gateway import running_deployment
from tests.support.webhook_receiver import LOOPBACK, receiving

RESPONSE = {"model": "null", "input": "ab", "max_output_tokens": 3, "background": True}


def test_an_endpoint_is_added_rotated_told_again_and_removed() -> None:
    settings = {"webhook_networks": LOOPBACK, "webhook_give_up_s": 0}
    with (
        EmbeddedBroker() as broker,
        running_deployment(broker.url, f"webhooks-{os.getpid()}", **settings) as deployment,
        receiving() as receiver,
    ):

        def rose(*words: str) -> Any:
            return run_rose("webhooks", *words, "--redis-url", broker.url)

        # given
        assert rose("list").stdout.startswith("no webhooks")
        receiver.answers = lambda _: (500, {})
        added = json.loads(rose("add", receiver.url, "--json").stdout)
        webhook, old = added["id"], added.pop("secret")
        # when: an answer that it does not take
        response = deployment.post("/responses", json=RESPONSE).json()
        wait_until(lambda: json.loads(rose("list", "--json").stdout)["dead"])
        (dead,) = map(json.loads, rose("dead", "--json").stdout.splitlines())
        # then
        assert dead["event"]["data"] == {"id": response["id"]}
        assert (dead["webhook"], dead["failure"]) == (webhook, "answered 500")
        assert dead["event"]["id"] in rose("dead", webhook).stdout
        # when: it has another secret, and takes it
        new = rose("rotate", webhook).stdout.strip()
        receiver.answers = lambda _: (204, {})
        assert rose("resend", webhook, "--all").stdout == "1 events are sent once more\n"
        wait_until(lambda: json.loads(rose("list", "--json").stdout)["undelivered"] == 0)
        # then
        assert receiver.received[-1].verified(new) == receiver.received[-1].verified(old)
        assert rose("dead").stdout == "no dead events\n"
        (listed,) = map(json.loads, rose("list", "--json").stdout.splitlines())
        assert listed["old_secret_until"] > listed["created_at"]
        assert listed | {"old_secret_until": None} == {
            **added,
            "undelivered": 0,
            "dead": 0,
            "failure": None,
        }
        shown = rose("list").stdout + rose("list", "--json").stdout + deployment.gateway.log
        assert "whsec_" not in shown
        # when
        assert rose("remove", webhook).stdout == f"removed {webhook}\n"
        # then
        assert rose("list").stdout.startswith("no webhooks")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "example.com"], "must begin with https://HOST"),
        (["add", "https://u:p@example.com"], "no user name, password"),
        (["add", "https://example.com", "--key", "0123"], "rose keys list"),
        (["add", "https://example.com", "--event", "response.created"], "response.created"),
        (["rotate", "wh_0"], "no webhook 'wh_0'"),
        (["remove", "wh_0"], "no webhook 'wh_0'"),
        (["dead", "wh_0"], "no webhook 'wh_0'"),
        (["resend", "wh_0", "--all"], "no webhook 'wh_0'"),
        (["resend", "wh_0"], "--all"),
        (["resend", "wh_0", "evt_0", "--all"], "--all"),
    ],
)
def test_a_mistake_is_told_in_a_line(broker: EmbeddedBroker, words: list[str], said: str) -> None:
    ended = run_rose("webhooks", *words, "--redis-url", broker.url)
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
