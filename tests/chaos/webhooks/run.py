"""A run: background responses and batches, whose gateways and receiver die while they end."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import redis
from openai import OpenAI, OpenAIError
from pydantic import BaseModel, ConfigDict

from rose import transport
from rose.settings import QueueSettings
from rose_cli.local.broker import EmbeddedBroker, free_port
from rose_cli.local.services import GatewayProcess, ServiceProcess, WorkerProcess
from rose_gateway.storage.webhook_endpoints import FRESH_S, WebhookEndpoints
from tests.chaos.findings import Finding
from tests.chaos.webhooks.check import Rule, check_notes
from tests.chaos.webhooks.receiver import Note, notes, write_secrets

QUEUE = "webhook-chaos"
_GATEWAYS, _WORKERS = 3, 2
_POLL_S = 0.05
#: Every so many responses a batch is created.
_EVERY = 25
#: The receiver is away for so long.
_AWAY_S = 2.0
_OVERLAP_S = 600


class WebhookOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    seed: int
    webhooks: int = 1000
    gateway_kills: int = 20
    receiver_kills: int = 10
    rotations: int = 5
    patience_s: float = 120.0
    """this long without an event that is taken: nothing will come any more"""


@dataclass
class Outcome:
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    told: int = 0
    """ends that were taken"""
    batches: int = 0
    gateway_kills: int = 0
    receiver_kills: int = 0
    wall_s: float = 0.0


class _Receiver(ServiceProcess):
    kind = "receiver"

    def __init__(self, folder: Path) -> None:
        port = free_port()
        program = ("tests.chaos.webhooks.receiver",)
        super().__init__("r", port, program, {"port": port, "folder": str(folder)})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/hook"


class WebhookRun:
    def __init__(
        self, options: WebhookOptions, folder: Path, on_tick: Callable[["WebhookRun"], None]
    ) -> None:
        self.options = options
        self.outcome = Outcome()
        self.owed: list[str] = []
        """ids of the responses and batches that are created"""
        self._folder = folder
        self._on_tick = on_tick
        self._draw = random.Random(f"{options.seed}:faults")
        self._over = threading.Event()
        self._secrets: list[str] = []

    def run(self) -> Outcome:
        """Raises: ServiceDied: the processes do not start."""
        began = time.monotonic()
        with ExitStack() as stack:
            self._broker = stack.enter_context(EmbeddedBroker(fake=False))
            self._redis = stack.enter_context(redis.Redis(port=self._broker.port, protocol=2))
            self._receiver = stack.enter_context(_Receiver(self._folder))
            workers = [
                stack.enter_context(
                    WorkerProcess(f"w{i}", self._broker.url, queue=QUEUE, engine="null")
                )
                for i in range(_WORKERS)
            ]
            self._gateways = [stack.enter_context(self._gateway(f"g{i}")) for i in range(_GATEWAYS)]
            for process in (self._receiver, *workers, *self._gateways):
                process.wait_ready()
            self._register()
            creating = threading.Thread(target=self._create)
            creating.start()
            try:
                self._watch(creating)
            finally:
                self._over.set()
                creating.join()
            self._check()
        self.outcome.wall_s = time.monotonic() - began
        return self.outcome

    def _gateway(self, name: str) -> GatewayProcess:
        return GatewayProcess(
            name,
            self._broker.url,
            queue=QUEUE,
            storage=str(self._folder / "storage"),
            batch_lease_s=2.0,
            webhook_networks="127.0.0.0/8",
            webhook_timeout_s=1.0,
            webhook_pause_s=0.1,
            webhook_max_pause_s=1.0,
        )

    def _register(self) -> None:
        endpoint, secret = self._endpoints(lambda endpoints: endpoints.add(self._receiver.url))
        self._endpoint_id = endpoint.id
        self._secrets = [secret]
        write_secrets(self._folder, self._secrets)
        time.sleep(FRESH_S)  # as `rose webhooks add` does

    def _rotate(self) -> None:
        """The receiver knows the old secrets, and not yet the new one: it is told afterwards."""
        _, secret = self._endpoints(
            lambda endpoints: endpoints.rotate(self._endpoint_id, _OVERLAP_S)
        )
        self._secrets.append(secret)
        write_secrets(self._folder, self._secrets)

    def _endpoints(self, action: Callable[[WebhookEndpoints], Any]) -> Any:
        async def run() -> Any:
            client = transport.AsyncRedisClient(QueueSettings(redis_url=self._broker.url))
            try:
                return await action(WebhookEndpoints(client))
            finally:
                await client.aclose()

        return asyncio.run(run())

    def _create(self) -> None:
        """In a thread of its own: whatever is created is created once, if gateways are killed."""
        draw = random.Random(f"{self.options.seed}:create")
        with httpx.Client(timeout=30) as client:
            for number in range(self.options.webhooks):
                if self._over.is_set():
                    return
                if number % _EVERY == _EVERY - 1:
                    self._create_batch(draw)
                else:
                    self._create_response(client, draw, number)

    def _create_response(self, client: httpx.Client, draw: random.Random, number: int) -> None:
        body = {
            "model": "null",
            "input": f"prompt {number}",
            "max_output_tokens": draw.randint(1, 30),
            "background": True,
        }
        headers = {"idempotency-key": f"k{number}"}
        while not self._over.is_set():
            gateway = draw.choice(self._gateways)
            try:
                answer = client.post(f"{gateway.url}/responses", json=body, headers=headers)
            except httpx.TransportError:
                time.sleep(_POLL_S)
                continue
            if answer.status_code == 200:
                self.owed.append(answer.json()["id"])
                if draw.random() < 0.05:
                    self._cancel(client, self.owed[-1], gateway)
                return
            if answer.status_code < 500:
                self._finds(Rule.ENDS, f"{answer.status_code} {answer.text[:300]}")
                return

    def _cancel(self, client: httpx.Client, response_id: str, gateway: GatewayProcess) -> None:
        """If the gateway is killed, it ends otherwise."""
        try:
            client.post(f"{gateway.url}/responses/{response_id}/cancel")
        except httpx.TransportError:
            return

    def _create_batch(self, draw: random.Random) -> None:
        """One whose only line is wrong. It counts if its id has come."""
        while not self._over.is_set():
            gateway = draw.choice(self._gateways)
            try:
                with OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as client:
                    file = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
                    batch = client.batches.create(
                        input_file_id=file.id,
                        endpoint="/v1/completions",
                        completion_window="24h",
                    )
            except OpenAIError:
                time.sleep(_POLL_S)
                continue
            self.owed.append(batch.id)
            self.outcome.batches += 1
            return

    def _watch(self, creating: threading.Thread) -> None:
        """Kill whenever so many events were taken, until all are."""
        options = self.options
        faults = [
            *((self._moment(), self._kill_gateway) for _ in range(options.gateway_kills)),
            *((self._moment(), self._kill_receiver) for _ in range(options.receiver_kills)),
            *((self._moment(), self._rotate) for _ in range(options.rotations)),
        ]
        faults.sort(key=lambda fault: fault[0])
        self._back_at = float("inf")
        moved = time.monotonic()
        while time.monotonic() - moved < options.patience_s:
            taken = {
                note.event["data"]["id"]
                for note in notes(self._folder)
                if note.taken and note.event is not None
            }
            if len(taken) != self.outcome.told:
                self.outcome.told, moved = len(taken), time.monotonic()
            while faults and faults[0][0] <= self.outcome.told:
                faults.pop(0)[1]()
            self._revive()
            self._on_tick(self)
            if not creating.is_alive() and taken >= set(self.owed):
                return
            time.sleep(_POLL_S)

    def _moment(self) -> int:
        return self._draw.randrange(max(1, self.options.webhooks * 9 // 10))

    def _kill_gateway(self) -> None:
        gateway = self._draw.choice(self._gateways)
        gateway.kill()
        self.outcome.gateway_kills += 1
        gateway.start()

    def _kill_receiver(self) -> None:
        if self._receiver.running:
            self._receiver.kill()
            self.outcome.receiver_kills += 1
            self._back_at = time.monotonic() + _AWAY_S

    def _revive(self) -> None:
        if time.monotonic() >= self._back_at:
            self._receiver.start()
            self._back_at = float("inf")
        for gateway in self._gateways:
            if not gateway.running:
                self._finds(Rule.ENDS, f"gateway {gateway.name}: {gateway.log[-300:]}")
                gateway.start()

    def _check(self) -> None:
        outcome = self.outcome
        for gateway in self._gateways:
            gateway.wait_ready()
        self._wait_until_nothing_is_left()
        outcome.notes = list(notes(self._folder))
        with httpx.Client(timeout=90) as client:
            ends = {object_id: self._event_type(client, object_id) for object_id in self.owed}
        outcome.findings += check_notes(outcome.notes, ends)
        for gateway in self._gateways:
            if any(secret in gateway.log for secret in self._secrets):
                self._finds(Rule.FORGED, f"the log of {gateway.name} has a secret")

    def _wait_until_nothing_is_left(self) -> None:
        """An event that was taken may be under way still, where no answer to it has come."""
        deadline = time.monotonic() + self.options.patience_s
        while left := self._left():
            if time.monotonic() > deadline:
                self._finds(Rule.ENDS, f"these keys are left: {left}")
                return
            self._revive()
            time.sleep(_POLL_S)

    def _left(self) -> list[str]:
        return [key.decode() for key in self._redis.scan_iter("rose:gateway:{bulk}:webhook_*")]

    def _event_type(self, client: httpx.Client, object_id: str) -> str:
        """As the status asks for it that a gateway shows."""
        kind = "batches" if object_id.startswith("batch_") else "responses"
        answer = client.get(f"{self._gateways[0].url}/{kind}/{object_id}")
        return f"{'batch' if kind == 'batches' else 'response'}.{answer.json()['status']}"

    def _finds(self, rule: Rule, detail: str) -> None:
        self.outcome.findings.append(Finding(rule, detail))
