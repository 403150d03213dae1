"""Everything that is drawn from the seed: the jobs, the faults and their order.

A job is a function of seed and number, so every process knows all of them without being told.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rose.protocol import Priority
from rose_producer.request import Request
from tests.chaos.tenants import tenant_of

ChaosPrompt = str | list[int] | list[dict[str, str]] | list[str]

#: Jobs numbered from here on are added without the client library.
RAW_BASE = 1_000_000
#: From here on: job `number - COPY_BASE` once more, because its result has expired, or because it
#: was a dead letter.
COPY_BASE = 2_000_000

_OPENINGS = (
    "Once upon a time",
    "Dear friend,",
    "Grüße aus Köln, naïve Zoë: ½ café",
    "こんにちは、世界。",
    "🐕 und 🐈‍⬛ gehen spazieren",
    "One morning",
    "Съешь же ещё этих мягких булок",
    "A dog",
)


class Kind(StrEnum):
    PLAIN = "plain"
    CANCEL_QUEUED = "cancelled while queued"
    CANCEL_RUNNING = "cancelled while running"
    DEADLINE = "with a deadline"
    AMPLE = "with an ample deadline"
    PAUSE = "with a long pause"
    POISON = "poison"


@dataclass(frozen=True, slots=True)
class JobPlan:
    number: int
    kind: Kind
    prompt: ChaosPrompt
    priority: str
    sampling: dict[str, Any]
    named: bool
    """It brings its own id; otherwise only an idempotency key holds its submits together."""
    join_s: float
    """How late its subscriber joins."""
    act_at: int = 0
    """Tokens after which it is cancelled, pauses, or kills its worker."""
    deadline_s: float | None = None
    linger_s: float = 0.0
    """How long its subscriber takes for an event."""
    partitions: int = 1
    tenant: str = ""
    session: str | None = None
    """what its worker is chosen by, beside the beginning of its prompt"""
    encode: dict[str, Any] | None = None
    """which numbers it asks for, of a job that generates nothing"""

    @property
    def own_id(self) -> str | None:
        return chaos_id(self.number, self.partitions) if self.named else None

    @property
    def metadata(self) -> dict[str, str | int | float | bool | None]:
        match self.kind:
            case Kind.POISON:
                return {"poison": self.act_at, "number": self.number}
            case Kind.PAUSE:
                return {"pause": self.act_at}
            case Kind.PLAIN if self.number % 3 == 0:
                return {"portions": True}
            case _:
                return {}

    @property
    def request(self) -> Request:
        return Request(
            self.prompt,
            priority=Priority(self.priority),
            deadline_s=self.deadline_s,
            metadata=self.metadata,
            idempotency_key=None if self.named else f"key-{self.number}",
            job_id=self.own_id,
            sampling=self.sampling,
            tenant=self.tenant or None,
            **self._newer,
        )

    @property
    def _newer(self) -> dict[str, Any]:
        """What the version before does not know."""
        given = {"session": self.session, "encode": self.encode}
        known = Request.__dataclass_fields__
        return {name: value for name, value in given.items() if value and name in known}


class FaultKind(StrEnum):
    KILL_WORKER = "SIGKILL of a worker"
    KILL_PRODUCER = "SIGKILL of a producer"
    KILL_SUBSCRIBER = "SIGKILL of a subscriber"
    STOP_WORKER = "SIGSTOP of a worker past its lease"
    STOP_SUBSCRIBER = "SIGSTOP of a subscriber"
    STAND_STILL = "event loop of a worker that stands still"
    SIGNALS = "signals in a client"
    FORK = "fork of a client"
    NEIGHBOUR = "jobs of the same names in another database"
    HUNG_STEP = "step that hangs"
    HUNG_TOKENIZER = "tokenizer that hangs"
    RESTART_REDIS = "SIGKILL and restart of Redis"
    FREEZE_REDIS = "Redis frozen"
    CUT = "connection cut"
    LOST_REPLY = "replies lost, up to three in a row"
    SILENCE = "silence: packets dropped both ways"
    SLOW = "slow Redis"
    DRAIN = "drain of a worker"
    GARBAGE = "garbage in a job stream"
    TWICE = "job added twice"
    TWINS = "equal entry ids in two streams"
    RETRY = "dead letter retried"
    EXPIRE = "result expired, and its key used again"
    FAILOVER = "failover by a Sentinel"
    MEMORY = "memory limit of Redis reached"
    CROWD = "crowd of streams in one client"
    KILL_LISTENER = "SIGKILL of the idle listener"
    KILL_GATEWAY = "SIGKILL of a gateway"
    STOP_GATEWAY = "SIGSTOP of a gateway"
    DRAIN_GATEWAY = "SIGTERM of a gateway"
    CUT_CLIENT = "client's connection cut"
    SILENCE_CLIENTS = "silence between clients and gateways"
    DAMAGE = "files of prefixes damaged"


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    kind: FaultKind
    at: float
    """Share of the jobs that have ended when it strikes."""
    target: int
    """Which process, wrapped around to as many as there are."""
    amount: float
    """0 to 1: how long, how far into a reply, which kind of garbage."""
    seed: int


#: Faults of a run of 5,000 jobs. Other runs have them in proportion, with a minimum of each kind.
_FULL = 5000
_DOSES = {
    FaultKind.KILL_WORKER: 62,
    FaultKind.KILL_PRODUCER: 20,
    FaultKind.KILL_SUBSCRIBER: 28,
    FaultKind.STOP_WORKER: 52,
    FaultKind.STOP_SUBSCRIBER: 10,
    FaultKind.STAND_STILL: 10,
    FaultKind.SIGNALS: 10,
    FaultKind.FORK: 20,
    FaultKind.NEIGHBOUR: 10,
    FaultKind.HUNG_STEP: 10,
    FaultKind.HUNG_TOKENIZER: 10,
    FaultKind.RESTART_REDIS: 10,
    FaultKind.FREEZE_REDIS: 8,
    FaultKind.CUT: 105,
    FaultKind.LOST_REPLY: 50,
    FaultKind.SILENCE: 30,
    FaultKind.SLOW: 10,
    FaultKind.DRAIN: 16,
    FaultKind.GARBAGE: 45,
    FaultKind.TWICE: 10,
    FaultKind.TWINS: 10,
    FaultKind.RETRY: 10,
    FaultKind.EXPIRE: 20,
    FaultKind.MEMORY: 4,
    FaultKind.KILL_LISTENER: 5,
    FaultKind.CROWD: 2,
}
_FAILOVERS = 5
_DAMAGES = 60
#: They need jobs that have ended long before.
_LATE = {FaultKind.RETRY, FaultKind.EXPIRE}
_POISONS = 15
#: Which prompts have in common, where jobs are placed; of a long run a sixth of its jobs.
_BEGINNINGS = 20
#: Of the jobs; the others are plain.
_SHARES = {
    Kind.CANCEL_QUEUED: 0.03,
    Kind.CANCEL_RUNNING: 0.03,
    Kind.DEADLINE: 0.03,
    Kind.AMPLE: 0.03,
    Kind.PAUSE: 0.02,
}
#: The run need not wait for the last pause.
_LAST_PAUSE = 0.8
#: Enough for any job of a run, and less than some of its clocks are wrong by.
_AMPLE_S = 60.0
_MIN_DOSES = {
    FaultKind.RESTART_REDIS: 1,
    FaultKind.FREEZE_REDIS: 1,
    FaultKind.STOP_SUBSCRIBER: 1,
    FaultKind.STAND_STILL: 1,
    FaultKind.HUNG_STEP: 1,
    FaultKind.HUNG_TOKENIZER: 1,
    FaultKind.SLOW: 1,
    FaultKind.RETRY: 1,
    FaultKind.MEMORY: 1,
    FaultKind.KILL_LISTENER: 1,
    FaultKind.CROWD: 1,
    FaultKind.CUT: 4,
    FaultKind.GARBAGE: 4,
}


@dataclass(frozen=True)
class Plan:
    seed: int
    jobs: int
    partitions: int = 1
    brevity: float = 1.0
    """texts are so much shorter"""
    tenants: int = 0
    placement: bool = False
    """many prompts begin alike"""
    numbers: bool = False
    """a third of the jobs ask for vectors or scores"""
    passing: Priority | None = None
    """jobs of this priority go before all tenants' shares"""
    poisons: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        count = max(1, round(_POISONS * self.jobs / _FULL))
        spread = (int((i + 0.2) * self.jobs / count) for i in range(count))
        object.__setattr__(self, "poisons", frozenset(spread))

    def job(self, number: int) -> JobPlan:
        if number >= COPY_BASE:
            original = self.job(number - COPY_BASE)
            return replace(original, number=number, kind=Kind.PLAIN, deadline_s=None)
        draw = random.Random(f"{self.seed}:job:{number}")
        tokens = draw.choice((draw.randint(1, 12), draw.randint(15, 60), draw.randint(60, 140)))
        tokens = max(1, round(tokens / self.brevity))
        kind, acts_at = self._kind(number, draw.random()), draw.randint(1, 20)
        prompt, session = _prompt(draw), None
        if self.placement and number < RAW_BASE:
            prompt, session = self._placed(number, prompt)
        job = JobPlan(
            number,
            kind,
            prompt=prompt,
            session=session,
            priority=draw.choice(("high", "normal", "normal", "low")),
            sampling=_sampling(draw, max(tokens, 30) if kind is not Kind.PLAIN else tokens),
            named=number >= RAW_BASE or draw.random() < 0.5,
            join_s=draw.choice((0.0, 0.0, 0.0, draw.uniform(0, 1), draw.uniform(0, 6))),
            act_at=draw.randint(1, 20) if kind is Kind.PAUSE else draw.choice((0, 0, acts_at)),
            deadline_s=_deadline_s(draw, kind),
            partitions=self.partitions,
            tenant="" if number >= RAW_BASE else tenant_of(self.seed, number, self.tenants),
            linger_s=draw.choice((0.1, 0.3)) if draw.random() < 0.03 else 0.0,
        )
        return self._for_numbers(job) if self.numbers else job

    def faults(self, *, failovers: bool = False, second_tier: bool = False) -> list[Fault]:
        """The whole schedule, in order."""
        doses = self.doses(failovers=failovers, second_tier=second_tier)
        return schedule(self.seed, doses)

    def doses(self, *, failovers: bool = False, second_tier: bool = False) -> dict[FaultKind, int]:
        """`failovers`: there is a Sentinel; `second_tier`: workers keep prefixes in files."""
        share = self.jobs / _FULL
        kinds = _DOSES | ({FaultKind.FAILOVER: _FAILOVERS} if failovers else {})
        kinds |= {FaultKind.DAMAGE: _DAMAGES} if second_tier else {}
        return {
            kind: max(_MIN_DOSES.get(kind, 2), round(count * share))
            for kind, count in kinds.items()
        }

    def _for_numbers(self, job: JobPlan) -> JobPlan:
        """A third of the jobs as one that generates nothing."""
        draw = random.Random(f"{self.seed}:numbers:{job.number}")
        if draw.random() >= 1 / 3:
            return job
        # Few: a suspect runs alone until it has an event, and the only one is its last.
        texts = [f"{draw.choice(_OPENINGS)} {draw.random()}" for _ in range(draw.randint(1, 4))]
        encode: dict[str, Any] = {"dimensions": draw.choice((None, 3))}
        if draw.random() < 0.5:
            encode = {"task": "score", "queries": [draw.choice(_OPENINGS)]}
        # It has one event: nothing happens in its middle.
        kinds = {Kind.PAUSE: Kind.PLAIN, Kind.CANCEL_RUNNING: Kind.CANCEL_QUEUED}
        kind = kinds.get(job.kind, job.kind)
        return replace(
            job, kind=kind, prompt=texts, encode=encode, sampling={}, act_at=0, session=None
        )

    def _placed(self, number: int, prompt: ChaosPrompt) -> tuple[ChaosPrompt, str | None]:
        """A prompt that goes on from one of some beginnings, or of a session, or of neither."""
        draw = random.Random(f"{self.seed}:placement:{number}")
        group = draw.randrange(max(_BEGINNINGS, self.jobs // 6))
        # Just as long as a text must be to be recognised: contexts are small.
        beginning = f"Story {group} of {self.seed}. " + "One morning a dog went out. " * 40
        match draw.randrange(4):
            case 0 if isinstance(prompt, str):
                return beginning + prompt, None
            case 1 if isinstance(prompt, str):
                turns = ({"role": "user", "content": text} for text in (beginning, prompt))
                return [*turns], None
            case 2 if isinstance(prompt, str):
                return prompt + beginning[::-1], f"session-{group}"
            case _:
                return prompt, None

    def _kind(self, number: int, drawn: float) -> Kind:
        if number in self.poisons:
            return Kind.POISON
        if number >= RAW_BASE:
            return Kind.PLAIN
        top = 0.0
        for kind, share in _SHARES.items():
            top += share
            if drawn < top and (kind is not Kind.PAUSE or number < _LAST_PAUSE * self.jobs):
                return kind
        return Kind.PLAIN


def schedule(seed: int, doses: Mapping[FaultKind, int]) -> list[Fault]:
    """So many of each kind, in a drawn order."""
    draw = random.Random(f"{seed}:faults")
    kinds = [kind for kind, count in doses.items() for _ in range(count)]
    kinds.sort(key=lambda kind: draw.uniform(0.5 if kind in _LATE else 0.0, 1.0))
    return [
        Fault(
            number,
            kind,
            at=0.95 * (number + 0.5) / len(kinds),
            target=draw.randrange(1000),
            amount=draw.random(),
            seed=draw.randrange(2**32),
        )
        for number, kind in enumerate(kinds)
    ]


def is_drawn(what: str, seed: int) -> bool:
    """Whether an option is on, where nobody says it."""
    return random.Random(f"{seed}:{what}").random() < 0.5


def chaos_id(number: int, partitions: int) -> str:
    """The id of a job that brings its own, or that is added past the client."""
    return f"{number % partitions}-chaos-{number}"


def _prompt(draw: random.Random) -> ChaosPrompt:
    words = " ".join(draw.choices(_OPENINGS, k=draw.randint(1, 4)))
    match draw.randrange(8):
        case 0:
            return [draw.randrange(3, 200) for _ in range(draw.randint(1, 40))]
        case 1:
            return [{"role": "user", "content": words}]
        case _:
            return words


def _deadline_s(draw: random.Random, kind: Kind) -> float | None:
    if kind is Kind.AMPLE:
        return _AMPLE_S
    return draw.uniform(0.2, 2.0) if kind is Kind.DEADLINE else None


def _sampling(draw: random.Random, tokens: int) -> dict[str, Any]:
    """Greedy, or sampled with a seed: both must say the same again on another worker."""
    sampling: dict[str, Any] = {"max_new_tokens": tokens, "ignore_eos": draw.random() < 0.7}
    if draw.random() < 0.5:
        sampling |= {"temperature": 0.9, "top_p": 0.95, "seed": draw.randrange(2**31)}
    return sampling
