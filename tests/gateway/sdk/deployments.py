"""A gateway with five models behind it, for the SDKs of OpenAI."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess
from rose_producer import Client
from tests.support.chat_model import write_chat_model
from tests.support.echo import serving

#: Models by what they are good for. The null engine's answers are known: it echoes the prompt.
CHAT = "chat"  # answers requests that need a real engine: grammars, log-probabilities
ECHO = "null:echo"
SLOW = "null:slow"  # 50 tokens a second
EMBED = "null:embed"  # its vectors are digests
FULL = "null:full"  # as slow, and its queue holds one job

#: With these the random model says this text, and ends.
SAYS_HELLO = {"regex": "hello, world"}
HI = [{"role": "user", "content": "hi"}]


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")  # the random model would add fields

    city: Literal["Paris", "Oslo"]
    degrees: int = Field(ge=-30, le=40)


@dataclass(frozen=True, slots=True)
class Deployment:
    url: str
    """with /v1"""
    broker_url: str
    queues: dict[str, str]
    """by model"""

    def client(self, model: str) -> Client:
        """Behind the gateway's back."""
        return Client(redis_url=self.broker_url, queue=self.queues[model])


@contextmanager
def open_deployment(folder: Path) -> Iterator[Deployment]:
    queues = {
        model: f"{model.rpartition(':')[2]}-{os.getpid()}"
        for model in (CHAT, ECHO, EMBED, SLOW, FULL)
    }
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())

        def work(of: str, **settings: Any) -> None:
            queue = queues[of]
            stack.enter_context(serving(queue, broker.url, queue=queue, **settings))

        # Noise would begin a thought before what must be JSON.
        model = str(write_chat_model(folder))
        work(CHAT, engine="rose", model=model, reasoning_format="none")
        work(ECHO, model="echo")
        work(EMBED, model="embed", task="embed")
        work(SLOW, model="slow", min_step_s=0.02)
        work(FULL, model="full", min_step_s=0.02, max_queued_jobs=1)
        gateway = stack.enter_context(
            GatewayProcess(
                "gateway",
                broker.url,
                queues=",".join(queues.values()),
                aliases=f'{{"{CHAT}": "{queues[CHAT]}"}}',
            )
        )
        gateway.wait_ready()
        yield Deployment(gateway.url, broker.url, queues)


def openai_client(url: str, api_key: str = "none", **options: Any) -> OpenAI:
    """Checks every answer against the types of the SDK, which it does not by itself."""
    return OpenAI(base_url=url, api_key=api_key, _strict_response_validation=True, **options)
