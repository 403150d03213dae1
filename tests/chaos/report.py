"""What came out: one table for people, one JSON value for machines, and clues when it failed."""

import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos import journal
from tests.chaos.bounds import Bounds, Wait
from tests.chaos.check import cause
from tests.chaos.command import count_names, count_rules, err, examples, tell
from tests.chaos.evidence import Evidence, moves
from tests.chaos.findings import Finding
from tests.chaos.invariants import Invariant
from tests.chaos.managed_process import End
from tests.chaos.plan import RAW_BASE, FaultKind, Kind
from tests.chaos.run import ChaosRun

_AROUND_S = 4.0
_CUTS = {
    "reply": "in the middle of a reply",
    "request": "in the middle of a request",
    "mute": "after replies had vanished",
    "silence": "at the end of a silence",
    "idle": "between two messages",
}


@dataclass(frozen=True)
class Report:
    run: ChaosRun
    evidence: Evidence
    findings: Sequence[Finding]
    losses: Sequence[Finding]
    """what a failover may lose"""
    wall_s: float

    @property
    def violations(self) -> dict[StrEnum, int]:
        return count_rules(Invariant, self.findings)

    @property
    def faults(self) -> dict[str, int]:
        """By kind, as they were carried out; cuts are counted by connection."""
        counts: dict[str, int] = {}
        planned = self.run.plan.doses(**self.run.options.faults)
        for kind in planned:
            counts[kind.value] = self.run.injector.done[kind]
            if kind is FaultKind.CUT:
                counts[kind.value] = sum(self.evidence.cuts.values())
                counts |= {f"  {_CUTS[mode]}": n for mode, n in sorted(self.evidence.cuts.items())}
        counts["poison jobs"] = sum(self.evidence.job(n).kind is Kind.POISON for n in self._jobs)
        counts["workers that poison killed"] = self._ended(End.POISONED)
        counts |= {name: self.run.scene.seen[name] for name in sorted(self.run.scene.seen)}
        return counts

    @property
    def as_json(self) -> dict[str, Any]:
        evidence, bounds = self.evidence, Bounds(self.evidence)
        summaries = list(evidence.summaries())
        return {
            "ok": not self.findings,
            "interrupted": evidence.interrupted,
            "seed": self.run.options.seed,
            "engine": self.run.options.engine,
            "topology": self.run.options.topology,
            "tls": self.run.options.tls,
            "without": self.run.options.sabotage,
            "beside": self.run.options.old,
            "jobs": len(self._jobs),
            "raw_jobs": len(evidence.ids) - len(self._jobs),
            "events": sum(summary.events for summary in summaries),
            "tokens": sum(summary.tokens for summary in summaries),
            "outcomes": dict(Counter(summary.outcome for summary in summaries)),
            "faults": self.faults,
            "invariants": count_names(Invariant, self.findings),
            "streams_of_crowds": sum(crowd.streams for crowd in evidence.crowds),
            "connections": dict(evidence.connections),
            "lost_with_failovers": self._losses(),
            "moves": self._moves(),
            "handed_back": self._handed_back(),
            "placed": self._placed(),
            "second_tier": self._second_tier(),
            "jobs_for_numbers": sum(evidence.job(n).encode is not None for n in self._jobs),
            "takeover_s": _summary(bounds.takeovers),
            "behind_s": _summary(bounds.behind),
            "waited_for_a_core_s": self._starved(),
            "slowest_drain_s": round(max(life.drain_s or 0.0 for life in evidence.lives), 2),
            "redis_memory_bytes": [evidence.redis.memory_before, evidence.redis.memory_after],
            "wall_s": round(self.wall_s, 1),
            "versions": {
                "roseinfer": version("roseinfer"),
                "python": platform.python_version(),
                "redis-py": version("redis"),
                "server": self.evidence.redis.version,
            },
        }

    @property
    def _jobs(self) -> list[int]:
        return [number for number in self.evidence.ids if number < RAW_BASE]

    def _ended(self, end: End) -> int:
        return sum(life.end is end for life in self.evidence.lives)

    def _starved(self) -> dict[str, float]:
        """How long each had to. Who is none of the workers is a proxy or Redis."""
        seconds: dict[str, float] = defaultdict(float)
        for span in self.evidence.starved:
            seconds[span.process or "proxies and Redis"] += span.ended - span.began
        return {who: round(for_s, 1) for who, for_s in sorted(seconds.items())}

    def _moves(self) -> dict[str, int]:
        """Jobs begun on again, by what befell the worker that had them."""
        causes = Counter(cause(self.evidence, *move) for move in moves(self.evidence.takes))
        return {str(why): count for why, count in causes.items()}

    def _handed_back(self) -> dict[str, int]:
        """How often a running job made room, and of whose."""
        tenants, backs = self.evidence.redis.tenants, self.evidence.handed_back
        return {"times": len(backs), "of tenants": sum(one.job_id in tenants for one in backs)}

    def _placed(self) -> dict[str, int]:
        """What the last life of each worker says: jobs whose beginnings were looked up, and those
        of them that stood aside."""
        names = {
            "jobs": "rose_placed_jobs_total",
            "stood aside": "rose_placement_wait_seconds_count",
        }
        return self._sums(names)

    def _second_tier(self) -> dict[str, int]:
        """What the last life of each worker says."""
        names = {
            "tokens looked up": "rose_second_tier_query_tokens_total",
            "found": "rose_second_tier_hit_tokens_total",
            "bytes written": "rose_second_tier_written_bytes_total",
        }
        return self._sums(names)

    def _sums(self, names: Mapping[str, str]) -> dict[str, int]:
        gauges = self.evidence.gauges.values()
        return {what: int(sum(one.get(name, 0) for one in gauges)) for what, name in names.items()}

    def _losses(self) -> dict[str, int]:
        counts = Counter(loss.rule.name.lower() for loss in self.losses)
        jobs = {loss.number for loss in self.losses if loss.number is not None}
        return {**counts, "jobs": len(jobs)} if jobs or counts else {}


def _summary(waits: Sequence[Wait]) -> dict[str, float]:
    """Of the seconds in which a worker could have had the job."""
    seconds = sorted(wait.seconds for wait in waits) or [0.0]
    ranks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: round(seconds[int(share * (len(seconds) - 1))], 2) for name, share in ranks.items()
    }


def show(report: Report, out: Console) -> None:
    result = report.as_json
    faults = Table("fault", "count", title=f"chaos, seed {result['seed']}", title_style="bold")
    for fault, count in result["faults"].items():
        faults.add_row(fault, str(count))
    out.print(faults)
    table = Table("what must hold", "violations")
    for invariant, count in report.violations.items():
        table.add_row(invariant, f"[red]{count}[/]" if count else "0")
    out.print(table)
    shown = ["moves", "takeover_s", "behind_s", "waited_for_a_core_s", "connections"]
    shown.append("lost_with_failovers")
    if report.run.options.hand_backs:
        shown.append("handed_back")
    if report.run.options.placement:
        shown.append("placed")
    if report.run.options.faults["second_tier"]:
        shown.append("second_tier")
    for name in shown:
        figures = ", ".join(f"{key} {value}" for key, value in result[name].items())
        out.print(f"{name.replace('_', ' ')}: {figures or 'none'}", soft_wrap=True)
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    if result["interrupted"]:
        out.print("interrupted: of the jobs and faults that were planned these are the first")
    out.print(
        f"{result['jobs']} jobs and {result['raw_jobs']} more past the client, "
        f"{result['events']} events in {result['wall_s']:.0f} s; "
        f"{sum(result['moves'].values())} times a job moved; {versions}"
    )


def show_clues(report: Report) -> None:
    """A few violations of each kind with all that is known about their jobs."""
    shown = {finding.number for some in examples(report.findings).values() for finding in some}
    delivered: dict[int, list[tuple[float, Any]]] = {}
    for _, (number, _, at, event) in journal.read(report.run.folder, "delivered-*.jsonl"):
        if number in shown:
            delivered.setdefault(number, []).append((at, event))

    def clues(finding: Finding) -> Iterable[str]:
        number = finding.number
        return () if number is None else _clues(report, number, delivered.get(number, []))

    tell(report.findings, clues)
    err.print(f"\nlogs and journals are kept in {report.run.folder}", markup=False)


def _clues(report: Report, number: int, delivered: Sequence[tuple[float, Any]]) -> Iterator[str]:
    evidence = report.evidence
    job, job_id = evidence.job(number), evidence.ids.get(number, "never submitted")
    yield f"job {number} = {job_id}: {job.kind}, {job.priority}, {job.sampling}"
    times = [at for at, _ in delivered]
    if delivered:
        last = delivered[-1][1]
        yield f"{len(times)} events from {times[0]:.3f} to {times[-1]:.3f}, last: {last}"
    takes = [take for take in evidence.takes if take.job_id == job_id]
    for take in takes:
        yield f"taken by {take.life} at {take.at:.3f}, token {take.done}"
    times += [take.at for take in takes]
    if times:
        for at, what in report.run.injector.log:
            if min(times) - _AROUND_S < at < max(times) + _AROUND_S:
                yield f"fault, done at {at:.3f}: {what}"
