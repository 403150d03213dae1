"""`python -m tests.fuzz.http`: schemathesis on the gateway's OpenAPI document, with real parts.

It makes requests that fit the document and requests that do not. Whatever comes back must be an
answer that the document describes, and never a server's error. Then hostile requests, of a grammar
of their own, beside a stream that must not feel them.
"""

import itertools
import json
import re
import secrets
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import leave_at_signals
from tests.fuzz.hostile import attack
from tests.support.command import run_rose
from tests.support.gateway import Deployment, running_deployment

#: A request that says no `max_tokens` gets as many as fit: few.
_WORKER = {"max_context": 256}
#: A worker whose streams have an event each 20 ms.
STEADY = {"min_step_s": 0.02}
#: What a schema can describe may still contradict itself, as a cursor of an answer that does not
#: stream: then the answer is 400.
#: A path without a method is 404, as OpenAI has it.
_NOT_CHECKED = ("positive_data_acceptance", "unsupported_method")
ALL_PHASES = "examples,coverage,fuzzing,stateful"
_MODEL = "null"
#: What a null engine can do. Of all the fields at once, some nearly always exclude each other.
_PLAIN = (
    *("model", "input", "messages", "prompt", "instructions", "stream", "store", "background"),
    *("max_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n"),
    *("metadata", "service_tier", "user", "presence_penalty", "ignore_eos"),
    *("requests", "tokens", "system", "stop_sequences"),
)
#: Responses and files that there are.
_STORED = 4
_LINES = b'{"custom_id": "a"}\n'


@contextmanager
def keyed_deployment(**worker: Any) -> Iterator[tuple[Deployment, str]]:
    """A deployment with one key, and the key's secret."""
    with EmbeddedBroker() as broker:
        made = run_rose("keys", "create", "fuzz", "--json", "--redis-url", broker.url)
        secret = str(json.loads(made.stdout)["secret"])
        with running_deployment(broker.url, "fuzz", worker=worker or _WORKER) as deployment:
            yield deployment, secret


@dataclass(frozen=True, slots=True)
class Outcome:
    cases: int
    operations: int
    failures: list[dict[str, Any]]
    output: str
    """what schemathesis prints"""

    @property
    def ok(self) -> bool:
        return self.cases > 0 and not self.failures


def fuzz(
    deployment: Deployment,
    secret: str,
    *,
    examples: int,
    seed: int,
    plain: bool,
    phases: str = ALL_PHASES,
) -> Outcome:
    """`examples`: the most requests for each operation in the phase `fuzzing`. `plain`: with the
    fields that fit together only, so that most are served."""
    with tempfile.TemporaryDirectory(prefix="rose-http-fuzz-") as folder:
        report, document = Path(folder, "report.json"), Path(folder, "openapi.json")
        document.write_text(json.dumps(_document(deployment, secret, plain=plain)))
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(document)),
            *("--url", deployment.origin, "--header", f"Authorization: Bearer {secret}"),
            *("--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"),
            *("--exclude-checks", ",".join(_NOT_CHECKED), "--request-timeout", "60"),
            *("--suppress-health-check", "all", "--phases", phases),
            *("--report", "json", "--report-json-path", str(report)),
        ]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not report.exists():
            raise RuntimeError(ended.stdout[-2000:] + ended.stderr[-2000:])
        said = json.loads(report.read_text())
    failures = [*said["failures"], *said["errors"]]
    if ended.returncode and not failures:
        failures.append({"exit": ended.returncode, "output": ended.stdout[-2000:]})
    return Outcome(
        said["test_cases"]["generated"], said["operations"]["tested"], failures, ended.stdout
    )


def _document(deployment: Deployment, secret: str, *, plain: bool) -> dict[str, Any]:
    """Its document, with the names of a model, of responses, jobs and files that there are: made-up
    ones are not found, and nothing behind them would be tried.

    `plain`: requests have no fields beside `_PLAIN`.
    """
    with urllib.request.urlopen(f"{deployment.origin}/openapi.json") as answer:
        document: dict[str, Any] = json.load(answer)
    with deployment.openai(api_key=secret) as client:
        names = [
            client.responses.create(model=_MODEL, input="hi", background=True).id
            for _ in range(2 * _STORED)
        ]
        files = [
            client.files.create(file=("a.jsonl", _LINES), purpose="batch").id
            for _ in range(2 * _STORED)
        ]
    for path in document["paths"].values():
        for method, operation in path.items():
            half = slice(_STORED) if method == "delete" else slice(_STORED, None)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    known = _known(parameter["name"], names[half], files[half])
                    parameter["schema"] = {"type": "string", "enum": [*known, "unknown"]}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                _narrow(body["schema"], plain)
    return document


def _known(parameter: str, responses: list[str], files: list[str]) -> list[str]:
    if parameter == "model":
        return [_MODEL]
    if parameter == "file_id":
        return files
    cut = "resp_" if parameter == "job_id" else ""
    return [name.removeprefix(cut) for name in responses]


def _narrow(body: dict[str, Any], plain: bool) -> None:
    fields = body["properties"]
    if plain:
        for name in [name for name in fields if name not in _PLAIN]:
            del fields[name]
    if "model" in fields:
        fields["model"] = {"type": "string", "enum": [_MODEL] if plain else [_MODEL, "unknown"]}


def main(
    cases: Annotated[int, typer.Option(min=1, help="At least so many requests.")] = 20_000,
    examples: Annotated[int, typer.Option(min=1, help="For each operation, in a round.")] = 200,
    seed: Annotated[int | None, typer.Option(help="Have a run again; else a new one.")] = None,
    hostile: Annotated[int, typer.Option(min=0, help="Hostile requests.")] = 200,
) -> None:
    """Rounds of schemathesis against a gateway and a worker with the null engine."""
    leave_at_signals()
    seed = secrets.randbits(32) if seed is None else seed
    done = 0
    if hostile:
        with keyed_deployment(**STEADY) as (deployment, secret):
            said = attack(deployment, count=hostile, seed=seed, secret=secret)
        typer.echo(str(said))
        if said.problems:
            typer.echo("WRONG: " + "; ".join(said.problems))
            sys.exit(1)
    with keyed_deployment() as (deployment, secret):
        for plain in itertools.cycle((False, True)):
            outcome = fuzz(deployment, secret, examples=examples, seed=seed, plain=plain)
            done += outcome.cases
            typer.echo(f"seed {seed}: {done:,} requests for {outcome.operations} operations")
            if not outcome.ok:
                typer.echo(outcome.output)
                sys.exit(1)
            if done >= cases:
                break
            seed += 1
        for status, count in answers(deployment).items():
            typer.echo(f"{status}: {count:,}")


def answers(deployment: Deployment) -> dict[str, int]:
    """How many requests the gateway has answered, by status."""
    with urllib.request.urlopen(f"{deployment.origin}/metrics") as page:
        lines = page.read().decode()
    counts: Counter[str] = Counter()
    for status, count in re.findall(
        r'^rose_gateway_requests_total\{.*status="(\d+)"\} (\S+)$', lines, re.MULTILINE
    ):
        counts[status] += int(float(count))
    return dict(sorted(counts.items()))


if __name__ == "__main__":
    typer.run(main)
