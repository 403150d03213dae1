"""OpenMP: how long its threads spin before they sleep, and one runtime for the whole process.

Imported first: the environment is read when torch loads. libgomp's threads busy-wait for each
other about a millisecond by default. A decode step has hundreds of short parallel regions; where
the cores are shared with anything else, threads then burn the very time slices that the one they
wait for needs, and a step takes ten times as long. Sleeping at once costs a wake-up for each
region. A short spin suits both, of about 0.1 ms. With the cores to itself, a step
of a Llama of 135M then sleeps three times, as with three times the spin. On crowded cores nearly
each of its 300 waits burns all of the spin. Each thread of the process that computes has a team of
its own for as long as it lives; if all teams are more threads than cores, libgomp spins a thirtieth
as long, so threads sleep at every other wait. Hence one thread should compute, or the others end.
"""

import ctypes
import os
import re
from pathlib import Path

_SPINS = "3000"
_RUNTIME = re.compile(r"lib(gomp|omp|iomp5)\b[^/]*\.(so|dylib)[^/]*")

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def open_with_openmp(path: Path) -> ctypes.CDLL:
    """Open the compiled library with the OpenMP runtime that torch has loaded.

    The library names no runtime of its own: a second one would start a second team of threads on
    the same cores, and `torch.set_num_threads` would not reach it. torch opens its runtime for the
    whole process. Where it does not, that is done here. Raises OSError.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        runtimes = mapped_runtimes()
        if not runtimes:
            raise
        ctypes.CDLL(runtimes[0], mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))


def mapped_runtimes() -> list[str]:
    """The OpenMP libraries in this process, where the system tells; in the order of their names."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if _RUNTIME.fullmatch(path.rpartition("/")[2]))
