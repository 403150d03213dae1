"""`rose chat` as a process: a worker is killed in mid-sentence, and the answer goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roseinfer.demo_model import MODEL_PATH
from tests.support.bench import wait_until
from tests.support.event_stream import event_stream

TIMEOUT_S = 120
STORY = {"input": "Tell me a story.", "max_output_tokens": 120, "temperature": 0}


class Chat:
    """One that serves the built-in model, in slow motion."""

    def __init__(self, folder: Path) -> None:
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rose_cli", "chat", "--model", str(MODEL_PATH)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"ROSE_MIN_STEP_S": "0.05", "TMPDIR": str(folder)},
            text=True,
            start_new_session=True,
        )
        self.said = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if "Ctrl-C" in line:
                break
        address = re.search(r"talk to it at (http://\S+)/,", self.said)
        assert address is not None, self.said + self.errors()
        self.url = address[1]

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        model = json.load(self.ask("/v1/models"))["data"][0]["id"]
        asked = {"model": model, "stream": True, **body}
        with event_stream("POST", f"{self.url}/v1/responses", body=asked) as (_, events):
            yield from (event.json for event in events if event.data != "[DONE]")

    def children(self) -> list[int]:
        """Processes of its session, itself included."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[3]) == self._process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def end(self, signum: int) -> int:
        """As a terminal does: everything that was started hears it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signum)
        return self._process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.children():
            self.end(signal.SIGKILL)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    chat = Chat(tmp_path_factory.mktemp("chat"))
    yield chat
    chat.close()


def test_it_says_how_its_workers_come_along(chat: Chat) -> None:
    for worker in ("worker-1", "worker-2"):
        assert re.search(rf"^  {worker}: ready after \d+ s$", chat.said, re.MULTILINE)
    assert re.search(r"^  worker-[12]: (?!ready)\S", chat.said, re.MULTILINE)


def test_nobody_is_killed_who_does_nothing(chat: Chat) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        chat.ask("/v1/demo/kill-worker", {})
    assert refused.value.code == 409
    assert json.load(refused.value)["error"]["code"] == "nobody_at_work"


def test_an_answer_goes_on_after_its_worker_was_killed(chat: Chat) -> None:
    # given
    undisturbed = list(chat.events(STORY))
    events, killed = [], None
    # when
    for event in chat.events(STORY):
        events.append(event)
        if killed is None and event["type"] == "response.output_text.delta" and len(events) > 20:
            killed = json.load(chat.ask("/v1/demo/kill-worker", {}))
    # then: every event once and in order, and the same text
    assert killed is not None
    assert killed["jobs"] == 1
    assert killed["worker"] in ("worker-1", "worker-2")
    assert killed["successor"] == "worker-3"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert deltas(events) == deltas(undisturbed) != ""
    assert events[-1]["type"] == undisturbed[-1]["type"]


def deltas(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def test_ctrl_c_ends_everything(chat: Chat) -> None:
    # given: the broker, two workers and itself
    assert len(chat.children()) >= 4
    # when, then
    assert chat.end(signal.SIGINT) == 0
    wait_until(lambda: not chat.children())
    assert chat.errors() == ""
