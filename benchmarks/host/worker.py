"""`rose worker` with a simulated device: python -m benchmarks.host.worker STEP_MS [--name=value]"""

import sys
from functools import partial
from typing import Any

from benchmarks.host.device import SimulatedDevice, SimulatedEngine
from rose_worker import main, rose_engine
from rose_worker.settings import WorkerSettings
from roseinfer import OnlineScheduler


def run(step_s: float, settings: WorkerSettings) -> None:
    rose_engine.InferenceEngine = partial(  # type: ignore[assignment,attr-defined]
        SimulatedEngine,
        simulated=SimulatedDevice(step_s),
        max_batch_size=settings.max_batch_size,
    )
    rose_engine.OnlineScheduler = partial(OnlineScheduler, overlap=True)  # type: ignore[assignment,attr-defined]
    main.run(settings)


if __name__ == "__main__":
    words = (word.removeprefix("--").split("=", 1) for word in sys.argv[2:])
    given: dict[str, Any] = {name.replace("-", "_"): value for name, value in words}
    run(float(sys.argv[1]) / 1e3, WorkerSettings(**given))
