"""Schemas, patterns and templates of strangers through a real worker: they cost nobody else.

    python -m tests.fuzz.preparation --seed 7

Each is drawn from a grammar of its own, hostile and harmless ones mixed. Meanwhile another caller
asks for a short answer again and again. Every job ends with a good answer or as an invalid request,
none is taken twice, and no process grows without bound. How long the other caller waits is compared
with what it waits alone, which says something only where nothing else loads the machine; so the
load is told, and tests do not decide by it.
"""

import json
import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import redis
import typer

from benchmarks.usage import resident_bytes
from rose.errors import InvalidRequest, JobCancelled, RoseError
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.support.greedy_model import write_model

_QUEUE = "fuzz"
_SHORT: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0}
_TOGETHER = 4
_PROGRESS = 25 * _TOGETHER
_LONGEST_S = 120
_MOST_GROWTH_MB = 300
_MOST_WAIT_MS = 250

_KINDS = ("integer", "number", "string", "object", "array", "anyOf", "enum", "multiple", "bounded")


@dataclass
class Report:
    seed: int
    outcomes: dict[str, int] = field(default_factory=dict)
    slowest_s: dict[str, float] = field(default_factory=dict)
    """of the jobs of each kind"""
    waits_ms: dict[str, float] = field(default_factory=dict)
    """of the other caller: the median and the most, alone and beside"""
    growth_mb: int = 0
    """the most of any process of the worker, children included"""
    problems: list[str] = field(default_factory=list)


class _Job(NamedTuple):
    kind: str
    prompt: Any
    limits: dict[str, Any]


class Strangers:
    """Draws what they send."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def schema(self, depth: int = 0) -> Any:
        draw = self._draw
        kind = draw.choice(_KINDS)
        if depth > 3 and kind in ("object", "array", "anyOf"):
            kind = "string"
        match kind:
            case "object":
                names = [f"p{n}" for n in range(draw.choice((1, 2, 3, 30)))]
                fields = {name: self.schema(depth + 1) for name in names}
                return {"type": "object", "properties": fields, "required": names[::2]}
            case "array":
                most = draw.choice((2, 10, 100_000))
                return {"type": "array", "items": self.schema(depth + 1), "maxItems": most}
            case "anyOf":
                both = draw.choice(("anyOf", "oneOf", "allOf"))
                return {both: [self.schema(depth + 1) for _ in range(draw.randint(1, 4))]}
            case "enum":
                return {"enum": [draw.choice((n, f"value {n}", None)) for n in range(9)]}
            case "string":
                return {
                    "type": "string",
                    **draw.choice(
                        (
                            {},
                            {"maxLength": 10 ** draw.randint(0, 7)},
                            {"pattern": self.pattern()},
                            {"format": "date-time"},
                        )
                    ),
                }
            case "multiple":
                return {"type": "integer", "multipleOf": self._number()}
            case "bounded":
                step = self._number()
                return {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 7 * step}
        return {"type": kind, **draw.choice(({}, {"minimum": -self._number()}, {"not": {}}))}

    def _number(self) -> int:
        return self._draw.choice(
            (2, 5, 10, 100, self._draw.randint(1, 10 ** self._draw.randint(1, 12)))
        )

    def pattern(self, depth: int = 0) -> str:
        draw = self._draw
        if depth > 4 or draw.random() < 0.3:
            return draw.choice(
                ("a", "[a-z]", r"\d", ".", r"\w", "[^x]", "(a|b)", r"\p{L}", "(?=x)")
            )
        parts = [self.pattern(depth + 1) for _ in range(draw.randint(1, 3))]
        match draw.randrange(4):
            case 0:
                return "(" + "|".join(parts) + ")"
            case 1:
                most = 10 ** draw.randint(0, 4)
                return f"({''.join(parts)}){{{draw.randint(0, most)},{most}}}"
            case 2:
                return f"({''.join(parts)}){draw.choice('*+?')}"
        return "".join(parts)

    def template(self, depth: int = 0) -> str:
        """`one` is 1, known when it is rendered: jinja computes constants when it reads a template,
        and all of these are in one."""
        draw = self._draw
        inner = self.template(depth + 1) if depth < 3 else "{{ messages[0].content }}"
        return draw.choice(
            (
                "{{ messages[0].content }}",
                f"{{% for m in messages %}}{inner}{{% endfor %}}",
                f"{{% for n in range({10 ** draw.randint(1, 4)}) %}}{inner}{{% endfor %}}",
                f"{{{{ 'a' * ({10 ** draw.randint(1, 11)} * one) }}}}{inner}",
                "{{ (9 * one)**9**9 }}",
                f"{{{{ ('%' ~ {10 ** draw.randint(1, 11)} * one ~ 'd')|format(1) }}}}{inner}",
                "{{ messages.__class__.__mro__ }}",
                "{{ raise_exception('no') }}",
                f"{{% set x = namespace(t='ab') %}}{{% for n in range({draw.randint(1, 40)}) %}}"
                "{% set x.t = x.t ~ x.t %}{% endfor %}{{ x.t }}",
            )
        )


class _Neighbour:
    """Another caller, who waits for one short answer after another."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.waits_ms: list[float] = []
        self.errors: list[str] = []

    def ask(self) -> None:
        began = time.monotonic()
        try:
            self._client.submit("Once upon", max_new_tokens=1).result(_LONGEST_S)
        except RoseError as error:
            self.errors.append(f"the other caller: {type(error).__name__} {error}")
        self.waits_ms.append((time.monotonic() - began) * 1000)


class _Sizes:
    """The resident memory of a worker's processes, watched."""

    def __init__(self, pid: int) -> None:
        self._worker = pid
        self._first: dict[int, int] = {}
        self.growth = 0

    def look(self) -> None:
        for pid in _with_children(self._worker):
            with suppress(OSError, IndexError):  # it has just ended
                size = resident_bytes(pid)
                self.growth = max(self.growth, size - self._first.setdefault(pid, size))


@contextmanager
def _again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """Meanwhile a thread does it, with short pauses."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(0.02):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _with_children(int(child))


def fuzz(schemas: int, patterns: int, templates: int, seed: int) -> Report:
    """Raises: ServiceDied, BrokerUnavailable: nothing could be started."""
    report, strangers = Report(seed), Strangers(seed)
    limits: list[tuple[str, dict[str, Any]]] = [
        *(("schema", {"json_schema": json.dumps(strangers.schema())}) for _ in range(schemas)),
        *(("pattern", {"regex": strangers.pattern()}) for _ in range(patterns)),
    ]
    random.Random(seed).shuffle(limits)
    written = [strangers.template() for _ in range(templates)]
    # One model has them all: a message says which of them is meant.
    cases = "".join(
        f"{{%- {'elif' if n else 'if'} messages[0].content == 'template {n}' -%}}{text}"
        for n, text in enumerate(written)
    )
    template = (
        "{%- set one = messages|length -%}"
        f"{cases or '{% if false %}'}{{%- else -%}}x{{%- endif -%}}"
    )
    jobs: list[_Job] = [_Job(kind, "Once", given) for kind, given in limits]
    jobs += [
        _Job("template", [{"role": "user", "content": f"template {n}"}], {})
        for n in range(templates)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="rose-fuzz-") as folder,
        EmbeddedBroker(fake=False) as broker,
        WorkerProcess(
            "fuzzed",
            broker.url,
            queue=_QUEUE,
            engine="rose",
            model=str(write_model(Path(folder, "model"), template)),
            device="cpu",
            torch_threads=1,
            log_level="error",
        ) as worker,
        Client(redis_url=broker.url, queue=_QUEUE) as client,
        redis.Redis(port=broker.port, protocol=2) as raw,
    ):
        worker.wait_ready()
        _run(client, raw, worker, jobs, report)
    return report


def _run(
    client: Client, raw: redis.Redis, worker: WorkerProcess, jobs: Sequence[_Job], report: Report
) -> None:
    client.submit("Once", max_new_tokens=1).result(_LONGEST_S)
    alone, beside, sizes = _Neighbour(client), _Neighbour(client), _Sizes(worker.pid or 0)
    with _again_and_again(alone.ask):
        time.sleep(2)
    outcomes: Counter[str] = Counter()
    with _again_and_again(sizes.look), _again_and_again(beside.ask):
        for start in range(0, len(jobs), _TOGETHER):
            if start % _PROGRESS == 0:
                typer.echo(f"{start} of {len(jobs)} jobs", err=True)
            together = jobs[start : start + _TOGETHER]
            began = time.monotonic()
            sent = [client.submit(job.prompt, **_SHORT, **job.limits) for job in together]
            for kind, job in zip([job.kind for job in together], sent, strict=True):
                outcome = _outcome(job, report)
                outcomes[f"{kind}: {outcome}"] += 1
                took = time.monotonic() - began
                report.slowest_s[kind] = round(max(took, report.slowest_s.get(kind, 0)), 2)
                if (epoch := job.status().epoch) > 1:
                    report.problems.append(f"{kind} {job.id} was taken {epoch} times")
    report.outcomes = dict(sorted(outcomes.items()))
    report.growth_mb = sizes.growth >> 20
    for name, waits in (("alone", alone.waits_ms), ("beside", beside.waits_ms)):
        ordered = sorted(waits)
        report.waits_ms |= {
            f"{name}, median": round(ordered[len(ordered) // 2], 1),
            f"{name}, most": round(ordered[-1], 1),
        }
    report.problems += alone.errors + beside.errors
    for kind in {job.kind for job in jobs}:
        if not outcomes[f"{kind}: answered"]:
            report.problems.append(f"no {kind} was answered: they show nothing")
    if report.growth_mb > _MOST_GROWTH_MB:
        report.problems.append(f"a process has grown by {report.growth_mb} MB")
    if not worker.running or worker.http("/healthz") is None:
        report.problems.append(f"the worker is not well: {worker.log[-2000:]}")
    if letters := raw.xlen(Partition(_QUEUE).dead):
        report.problems.append(f"{letters} dead letters")


def _outcome(job: Any, report: Report) -> str:
    try:
        job.result(_LONGEST_S)
    except InvalidRequest:
        return "refused"
    except (RoseError, JobCancelled) as error:
        report.problems.append(f"{job.id}: {type(error).__name__} {str(error)[:200]}")
        return type(error).__name__
    return "answered"


def main(
    schemas: Annotated[int, typer.Option(min=0)] = 500,
    patterns: Annotated[int, typer.Option(min=0)] = 300,
    templates: Annotated[int, typer.Option(min=0)] = 100,
    seed: Annotated[int | None, typer.Option(help="Have a run again; else a new one.")] = None,
) -> None:
    """Draw what strangers may send, and send it."""
    seed = secrets.randbits(32) if seed is None else seed
    load = os.getloadavg()[0]
    typer.echo(f"seed {seed}, a load of {load:.1f} on {os.cpu_count()} cores before", err=True)
    report = fuzz(schemas, patterns, templates, seed)
    typer.echo(json.dumps(asdict(report), indent=2))
    late = report.waits_ms["beside, most"] - report.waits_ms["alone, median"]
    typer.echo(f"the other caller waited up to {late:.0f} ms longer (may: {_MOST_WAIT_MS})")
    sys.exit(bool(report.problems) or late > _MOST_WAIT_MS)


if __name__ == "__main__":
    typer.run(main)
