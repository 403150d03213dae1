"""A contender in an environment and a process of its own, frozen while it is not its turn."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from benchmarks.engine.contenders import Run, Streaming
from benchmarks.process_group import ProcessGroup
from benchmarks.workload import Workload

#: What this process has set for its own threads.
_OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "LD_PRELOAD", "OMP_NUM_THREADS")


class FrozenProcess(Streaming):
    """`with` starts and ends it. It says a line of JSON about itself, then answers each line."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.greeting: Mapping[str, Any] = {}
        self._name = name
        self._group = ProcessGroup(command, environment)

    def __enter__(self) -> Self:
        self._group.start(talks=True)
        try:
            self.greeting = self._answer()
        except RuntimeError:
            self.__exit__()
            raise
        self._group.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        self._group.end()

    @property
    def pid(self) -> int:
        return self._group.pid

    def ask(self, what: Mapping[str, Any]) -> Any:
        self._group.thaw()
        try:
            self._group.say(json.dumps(what))
            return self._answer()
        finally:
            self._group.freeze()

    def run(self, work: Workload) -> Run:
        answer = self.ask({"prompts": work.prompts, "new_tokens": work.new_tokens})
        return Run(answer["seconds"], answer["outputs"])

    def token_times(self, prompt: Sequence[int], new_tokens: int) -> list[float]:
        times: list[float] = self.ask({"prompt": list(prompt), "new_tokens": new_tokens})["times"]
        return times

    def _answer(self) -> Any:
        """Raises: RuntimeError: it ended instead."""
        return json.loads(self._group.answer(self._name))


def plain_environment() -> dict[str, str]:
    """This process's, without what it has set for its own threads."""
    return {name: value for name, value in os.environ.items() if name not in _OURS}
