"""Which models there are, their queues and their vocabularies, as workers announce them."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rose import transport
from rose.engine_records import Task
from rose.errors import MalformedMessage
from rose.protocol import Partition
from rose.protocol.announced_model import MODEL_FIELDS, AnnouncedModel, read_model
from rose.protocol.vocabulary import decode_vocabulary
from rose_gateway.errors import ApiError

log = logging.getLogger("rose.gateway")

#: At the end of an alias: it is for all names that begin as it does.
_ANY = "*"

#: What a model does, and where it is asked to.
_TASKS = {
    "generate": ("generates text", "/v1/chat/completions or /v1/responses"),
    "embed": ("embeds texts", "/v1/embeddings or /v2/embed"),
    "score": ("scores texts", "/v1/rerank or /v1/score"),
}

#: What was read so lately is believed.
_FRESH_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(AnnouncedModel):
    """A queue, and the model that its workers serve."""

    queue: str
    vocabulary: str = ""
    """fingerprint of its vocabulary; "" if it is not announced"""
    adapter: str | None = None
    """the LoRA adapter that is asked for; None for the model itself"""


class Catalogue:
    """Belongs to one event loop."""

    def __init__(
        self,
        redis: transport.AsyncRedisClient,
        queues: Iterable[str],
        aliases: Mapping[str, str],
    ) -> None:
        self._redis = redis
        self._queues = tuple(queues)
        self._aliases = dict(aliases)
        self._models: list[ServedModel] = []
        self._read_at = float("-inf")

    async def models(self) -> list[ServedModel]:
        """Of every queue whose workers have announced one.

        Raises: BrokerUnavailable
        """
        if time.monotonic() - self._read_at > _FRESH_S:
            self._models = await self._read()
            self._read_at = time.monotonic()
        return self._models

    async def names(self) -> dict[str, ServedModel]:
        """Every name that a request may use: models, MODEL:ADAPTER, and aliases."""
        models = await self.models()
        names = {
            f"{model.name}:{adapter}": replace(model, adapter=adapter)
            for model in reversed(models)
            for adapter in model.adapters
        }
        names |= {model.name: model for model in reversed(models)}
        for alias, target in self._aliases.items():
            if not alias.endswith(_ANY) and (model := _target(names, target)) is not None:
                names.setdefault(alias, model)
        return names

    async def resolve(self, name: str, task: Task | None = "generate") -> ServedModel:
        """`task`: what it is to do; None: whatever it does.

        Raises: ApiError: 404 model_not_found, 400 model_not_supported; BrokerUnavailable
        """
        names = await self.names()
        model = names.get(name) or _target(names, self._by_pattern(name))
        if model is None:
            raise ApiError(
                404,
                f"the model {name!r} is not served here: GET /v1/models lists those that are",
                param="model",
                code="model_not_found",
            )
        if task not in (None, model.task):
            can, uses = _TASKS.get(model.task, ("does something else", "another endpoint"))
            raise ApiError(
                400,
                f"the model {name!r} {can}: send it to {uses}",
                param="model",
                code="model_not_supported",
            )
        return model

    def _by_pattern(self, name: str) -> str:
        """What the longest alias stands for that ends in `*` and begins as the name does; "" if
        there is none."""
        patterns = [alias for alias in self._aliases if alias.endswith(_ANY)]
        fitting = (alias for alias in patterns if name.startswith(alias.removesuffix(_ANY)))
        return self._aliases.get(max(fitting, key=len, default=""), "")

    async def _read(self) -> list[ServedModel]:
        served = []
        with transport.broker_errors():
            for queue in self._queues:
                fields = (*MODEL_FIELDS, "vocabulary")
                *facts, vocabulary = await self._redis.execute(
                    "HMGET", Partition(queue).model, *fields
                )
                if (model := _served(queue, facts, vocabulary or b"")) is not None:
                    served.append(model)
        return served


def _target(names: Mapping[str, ServedModel], target: str) -> ServedModel | None:
    """What an alias stands for: a model by its name, or by its queue."""
    by_queue = (model for model in names.values() if model.queue == target and not model.adapter)
    return names.get(target) or next(by_queue, None)


def _served(queue: str, facts: list[Any], vocabulary: bytes) -> ServedModel | None:
    """None before the first worker came, or where somebody else has written there."""
    try:
        model = read_model(facts)
        return ServedModel(**model, queue=queue, vocabulary=vocabulary.decode()) if model else None
    except ValueError:
        log.warning("what queue %s says of its model is not what the protocol says", queue)
        return None


class TokenName(NamedTuple):
    token: str
    bytes: list[int] | None


class Vocabulary:
    """The tokens' bytes by their ids. An id that is not known is called by its number."""

    def __init__(self, tokens: list[bytes] | tuple[bytes, ...] = ()) -> None:
        self._tokens = tokens
        self._names: dict[int, TokenName] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def name(self, token_id: int) -> TokenName:
        """A part of a character has its bytes as escapes."""
        known = self._names.get(token_id)
        if known is None:
            known = self._names[token_id] = self._name(token_id)
        return known

    def text(self, token_ids: list[int]) -> str | None:
        """What the tokens say; None if one of them is not known."""
        if not all(token_id < len(self._tokens) for token_id in token_ids):
            return None
        return b"".join(self._tokens[token_id] for token_id in token_ids).decode(errors="replace")

    def _name(self, token_id: int) -> TokenName:
        if token_id >= len(self._tokens):
            return TokenName(f"token_id:{token_id}", None)
        raw = self._tokens[token_id]
        return TokenName(raw.decode(errors="backslashreplace"), list(raw))


def chat_logprob(vocabulary: Vocabulary, token_id: int, logprob: Any) -> dict[str, Any]:
    """A token as chat completions show it; `logprob` is a `TokenLogprob`."""
    name = vocabulary.name(token_id)
    return {
        "token": name.token,
        "bytes": name.bytes,
        "logprob": logprob.logprob,
        "top_logprobs": [
            {
                "token": vocabulary.name(top_id).token,
                "bytes": vocabulary.name(top_id).bytes,
                "logprob": top,
            }
            for top_id, top in logprob.top
        ],
    }


log = logging.getLogger("rose.gateway")

#: Vocabularies in memory, of some ten megabytes each.
_MAX_KEPT = 8


def vocabulary_key(model: ServedModel) -> str:
    """Where the workers of a queue keep it; "" if they have none."""
    if not model.vocabulary:
        return ""
    return Partition(model.queue).vocabulary(model.vocabulary)


class Vocabularies:
    """Belongs to one event loop."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis
        self._kept: OrderedDict[str, Vocabulary] = OrderedDict()

    async def get(self, key: str) -> Vocabulary:
        """One without tokens where there is none.

        Raises: BrokerUnavailable
        """
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            return known
        raw = None
        if key:
            with transport.broker_errors():
                raw = await self._redis.execute("GET", key)
        if raw is None:
            return Vocabulary()
        # Up to a second for the largest: not where the streams run.
        vocabulary = await asyncio.to_thread(_read, raw)
        self._kept[key] = vocabulary
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return vocabulary


def _read(raw: bytes) -> Vocabulary:
    """One without tokens where somebody else has written there."""
    try:
        return Vocabulary(decode_vocabulary(raw))
    except MalformedMessage as error:
        log.warning("a vocabulary cannot be read: %s", error)
        return Vocabulary()
