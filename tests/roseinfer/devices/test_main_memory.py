"""How much memory may be used, as a system tells it."""

from pathlib import Path

import pytest

from roseinfer.devices.main_memory import free_memory, total_memory

_GIB = 1024**3


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in (
        {"proc/meminfo": f"MemTotal: {32 * 2**20} kB\nMemAvailable: {16 * 2**20} kB\n"} | files
    ).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def group(place: str, limit: str, used: int, files: int) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{place}memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{place}memory.current": f"{used}\n",
        f"sys/fs/cgroup/{place}memory.stat": f"anon 1\ninactive_file {files}\n",
    }


NESTED = group("pods/", str(8 * _GIB), 6 * _GIB, 0) | group("pods/one/", str(4 * _GIB), 0, 0)
OLDER = "sys/fs/cgroup/memory/box/"


@pytest.mark.parametrize(
    ("membership", "files", "gibs"),
    [
        # without a limit the machine's memory counts
        ("0::/\n", group("", "max", _GIB, 0), 16),
        # a container's limit, less what it uses and cannot give back
        ("0::/\n", group("", str(4 * _GIB), 2 * _GIB, _GIB), 3),
        # the tightest of the groups above
        ("0::/pods/one\n", NESTED, 2),
        (
            "4:cpu:/box\n3:memory:/box\n",
            {
                f"{OLDER}memory.limit_in_bytes": f"{_GIB}",
                f"{OLDER}memory.usage_in_bytes": "0",
                f"{OLDER}memory.stat": "cache 0\n",
            },
            1,
        ),
    ],
    ids=["no limit", "a limit", "nested limits", "the older kind of control groups"],
)
def test_limits_of_control_groups_count(
    tmp_path: Path, membership: str, files: dict[str, str], gibs: int
) -> None:
    write(tmp_path, {"proc/self/cgroup": membership} | files)
    assert free_memory(tmp_path) == gibs * _GIB


def test_what_there_is_in_all(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n"} | group("", "max", 8 * _GIB, 0))
    assert total_memory(tmp_path) == 32 * _GIB
    write(tmp_path, group("", str(4 * _GIB), 3 * _GIB, _GIB))
    assert total_memory(tmp_path) == 4 * _GIB
    assert total_memory(tmp_path / "nothing") is None


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "0::/gone\n"}])
def test_a_system_that_tells_of_no_group(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert free_memory(tmp_path) == 16 * _GIB
    (tmp_path / "proc/meminfo").unlink()
    assert free_memory(tmp_path) == 4 * _GIB
