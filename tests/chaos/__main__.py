"""The chaos harness.

    python -m tests.chaos [--jobs N] [--seed S] [--engine null|rose|vllm|mixed] [--old COMMIT]
                          [--topology one|cluster|sentinel] [--tls] [--tenants N] [--[no-]placement]
                          [--[no-]hand-backs] [--[no-]second-tier] [--[no-]numbers] [--nightly]
                          [--json]
    python -m tests.chaos --without renewal|fencing|log|memory|clock|caps     must fail
    python -m tests.chaos --bite                             all of them, and says what broke

Exit status 0 only if every invariant held (with --bite: only if each sabotage was noticed), 2 if
there was no run, for want of a redis-server, say. SIGINT ends a run: what was submitted by then is
followed to its end and checked, and the exit status is 130 if all of it held.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, get_args

from rose.errors import RoseError
from tests.chaos.answers import model_answers, null_answer
from tests.chaos.check import check
from tests.chaos.command import Ticker, drawn_seed, err, out
from tests.chaos.context import EngineName, Options, Sabotage, TopologyName
from tests.chaos.invariants import Invariant
from tests.chaos.losses import without_losses
from tests.chaos.plan import is_drawn
from tests.chaos.report import Report, show, show_clues
from tests.chaos.run import ChaosRun
from tests.support.nursery import forking

_BITE_JOBS, _BITE_TENANTS = 250, 4
#: Streams of one client at once; in a short run fewer.
_CROWD, _CROWD_PER_JOB = 2000, 5
_BITE_PATIENCE_S = 25.0
#: What must break, whatever else does.
_BITES: dict[Sabotage, Invariant] = {
    "renewal": Invariant.MOVED,
    "fencing": Invariant.LOG,
    "log": Invariant.LOST,
    "memory": Invariant.GOES_ON,
    "clock": Invariant.DEADLINES,
    "caps": Invariant.CAPS,
}
#: The built-in model takes seconds to load and shares the cores with everybody.
_ROSE: dict[str, Any] = {"workers": 2, "window": 60, "min_step_s": 0.02, "patience_s": 90.0}
#: vLLM takes longer to start and to step: fewer and shorter texts.
_VLLM = _ROSE | {"slots": 12, "brevity": 2.0, "patience_s": 150.0}
_PRESETS = {"rose": _ROSE, "vllm": _VLLM, "mixed": _VLLM}
#: 100,000 jobs in a night: as many faults a job, more of them at once. Twice as many workers may be
#: lost at once, of half the slots, so the bounds are the same.
_NIGHTLY: dict[str, Any] = {
    "workers": 6,
    "slots": 12,
    "min_step_s": 0.04,
    "subscribers": 4,
    "window": 300,
    "brevity": 2.0,
    "faults_at_once": 8,
}
_INTERRUPTED, _PLACED_WINDOW = 130, 60
#: Where jobs stand aside, and make room: slots are free, and then all are taken, in turn.
_RUSHES: dict[str, Any] = {"slots": 12, "window": 30, "rush": 60}


async def _carry_out(options: Options, folder: Path) -> Report:
    """Raises: TimeoutError: the workers do not start."""
    began = time.monotonic()
    ticker, end = Ticker(1.0), "\r" if err.is_terminal else "\n"

    def on_tick(run: ChaosRun) -> None:
        ticker.tick(lambda: _progress(run), run.injector.log, end)

    run = ChaosRun(options, folder, on_tick)
    _end_at_sigint(run, asyncio.get_running_loop())
    evidence = await run.run()
    wall_s = time.monotonic() - began
    jobs = [evidence.job(n) for n in evidence.ids if n not in evidence.failures]
    if options.engine == "null":
        evidence.answers = {job.number: null_answer(job) for job in jobs}
    else:
        err.print("now the same jobs undisturbed")
        evidence.answers = await model_answers(jobs, max(options.engines))
    violations, losses = without_losses(evidence, check(evidence))
    return Report(run, evidence, violations, losses, wall_s)


def _progress(run: ChaosRun) -> str:
    progress = run.progress
    return (
        f"{len(progress.ended)} of {len(progress.submitted)} jobs ended, "
        f"{progress.events.total()} events, {len(run.injector.log)} faults"
    )


def main() -> None:
    # Of the harness alone, though a terminal sends it to all processes: children inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
            signal.signal(signum, _leave)
    args = _arguments()
    try:
        sys.exit(_bite(args) if args.bite else _holds(args))
    except (RoseError, TimeoutError) as error:
        err.print(f"chaos: {error}")
        sys.exit(2)


def _holds(args: argparse.Namespace) -> int:
    """Exit status."""
    preset = _PRESETS.get(args.engine, {}) | (_NIGHTLY if args.nightly else {})
    seed = drawn_seed(args.seed)
    placement, hand_backs, second_tier, numbers = (
        is_drawn(name, seed) if given is None else given
        for name, given in (
            ("placed", args.placement),
            ("handed back", args.hand_backs),
            ("second tier", args.second_tier),
            ("numbers", args.numbers),
        )
    )
    if placement:  # no job stands aside for a worker that is full
        preset = (_RUSHES if hand_backs else {"window": _PLACED_WINDOW}) | preset
    patience = {"patience_s": _BITE_PATIENCE_S} if args.without else {}
    options = Options(
        seed=seed,
        jobs=args.jobs,
        engine=args.engine,
        sabotage=args.without,
        topology=args.topology,
        tls=args.tls,
        old=args.old,
        tenants=args.tenants,
        placement=placement,
        hand_backs=hand_backs,
        second_tier=second_tier,
        numbers=numbers and args.engine == "null" and args.old is None,
        crowd=min(_CROWD, _CROWD_PER_JOB * args.jobs),
        **(preset | patience),
    )
    report = _run(options)
    if args.json:
        out.print_json(data=report.as_json, indent=None)
    else:
        show(report, out)
    if report.findings:
        return 1
    return _INTERRUPTED if report.evidence.interrupted else 0


def _run(options: Options, *, keep: bool = True) -> Report:
    """`keep` the files of a run that failed, and show what is known."""
    folder = Path(tempfile.mkdtemp(prefix="rose-chaos-"))
    without = f", without {options.sabotage}" if options.sabotage else ""
    err.print(f"seed {options.seed}: {options.jobs} jobs, engine {options.engine}{without}")
    try:
        with forking():
            report = asyncio.run(_carry_out(options, folder))
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(folder)
        raise
    if report.findings and keep:
        show_clues(report)
    else:
        shutil.rmtree(folder)
    return report


def _end_at_sigint(run: ChaosRun, loop: asyncio.AbstractEventLoop) -> None:
    """The first ends the run, which is reported; a second leaves, and so does one at its start."""

    def wait() -> None:
        signal.sigwait({signal.SIGINT})
        err.print("chaos: no more jobs and faults; once more to leave without a report")
        loop.call_soon_threadsafe(interrupt)
        signal.sigwait({signal.SIGINT})
        os.kill(os.getpid(), signal.SIGTERM)

    def interrupt() -> None:
        try:
            run.interrupt()
        except RuntimeError:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="sigint", daemon=True).start()


def _leave(signum: int, _: object) -> None:
    """Through every `finally`, so that no process is left behind."""
    sys.exit(128 + signum)


def _bite(args: argparse.Namespace) -> int:
    """Does the harness notice each sabotage, and by what it must notice it? Exit status."""
    broke: dict[str, dict[str, int]] = {}
    noticed = True
    for what, invariant in _BITES.items():
        seed = 1 if args.seed is None else args.seed
        options = Options(
            seed=seed,
            jobs=_BITE_JOBS,
            sabotage=what,
            patience_s=_BITE_PATIENCE_S,
            tenants=_BITE_TENANTS if what == "caps" else 0,
        )
        violations = _run(options, keep=False).violations
        broke[what] = {i.name.lower(): n for i, n in violations.items() if n}
        noticed = noticed and violations[invariant] > 0
    if args.json:
        out.print_json(data=broke, indent=None)
    else:
        for safeguard, counts in broke.items():
            said = ", ".join(f"{name} {count}" for name, count in counts.items())
            out.print(f"without {safeguard}: {said or 'NOTHING'} broke")
    return 0 if noticed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Is anything lost, doubled or reordered, whatever dies?",
    )
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--seed", type=int, help="of the jobs and of all faults; default random")
    parser.add_argument("--engine", choices=get_args(EngineName), default="null")
    parser.add_argument("--topology", choices=get_args(TopologyName), default="one")
    parser.add_argument("--tls", action="store_true", help="between the processes and Redis")
    parser.add_argument("--without", choices=get_args(Sabotage), help="sabotage: must fail")
    parser.add_argument(
        "--old",
        metavar="TREE",
        help="a checkout or a commit of another version, which every second process runs",
    )
    parser.add_argument(
        "--nightly",
        action="store_true",
        help="more processes, shorter texts, more faults at once: more jobs in the same time",
    )
    parser.add_argument("--tenants", type=int, default=0, help="whose jobs they are; none have any")
    parser.add_argument(
        "--placement",
        action=argparse.BooleanOptionalAction,
        help="workers are chosen by the beginnings of prompts; drawn from the seed if not given",
    )
    parser.add_argument(
        "--hand-backs",
        action=argparse.BooleanOptionalAction,
        help="a running job makes room for one of a higher priority; drawn as before",
    )
    parser.add_argument(
        "--second-tier",
        action=argparse.BooleanOptionalAction,
        help="workers with the engine rose keep prefixes in files, which are damaged; drawn as "
        "before",
    )
    parser.add_argument(
        "--numbers",
        action=argparse.BooleanOptionalAction,
        help="a third of the jobs ask the engine null for vectors or scores; drawn as before",
    )
    parser.add_argument("--bite", action="store_true", help="run every sabotage")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
