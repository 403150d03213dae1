"""How many cores a process may use, by the files of its cgroups."""

import os
from pathlib import Path

import pytest

from rose.cores import usable_cores


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000"}, 16),
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "5000 100000"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000"}, 16),
        ("0::/pod/worker\n", {"pod/worker/cpu.max": "max 100000", "pod/cpu.max": "3000 1000"}, 3),
        ("0::/not/seen/here\n", {"cpu.max": "400000 100000"}, 4),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            16,
        ),
        (None, {}, 16),
    ],
)
def test_cgroups_limit_the_cores(
    tmp_path: Path, membership: str | None, files: dict[str, str], cores: int
) -> None:
    # given
    if membership is not None:
        write(tmp_path / "proc/self/cgroup", membership)
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    # then
    assert usable_cores(tmp_path) == cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
