"""`rose worker` with a simulated device: python -m benchmarks.host.worker STEP_MS [--name=value]"""

import sys
from functools import partial

from benchmarks.host.device import SimulatedDevice, SimulatedEngine
from rose_cli.entry import main
from rose_worker import rose_engine
from roseinfer import OnlineScheduler

if __name__ == "__main__":
    device = SimulatedDevice(float(sys.argv[1]) / 1e3)
    rose_engine.InferenceEngine = partial(SimulatedEngine, simulated=device)  # type: ignore[assignment,attr-defined]
    rose_engine.OnlineScheduler = partial(OnlineScheduler, overlap=True)  # type: ignore[assignment,attr-defined]
    sys.argv[1] = "worker"
    main()
