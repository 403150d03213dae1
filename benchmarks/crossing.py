"""Which files of this project one streamed chat crosses, in the gateway and in the worker.

    python -m benchmarks.crossing [--list]

Both run under a profiler that notes the files of the functions that are called, from before the
request to after its last token. The worker has the built-in model.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from runpy import run_module
from types import FrameType
from typing import Any

import httpx2 as httpx

from rose_cli.local.broker import EmbeddedBroker, free_port
from rose_cli.local.services import ServiceProcess

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("rose/", "producer/", "worker/", "gateway/", "roseinfer/", "cli/")


def _record(target: Path, program: list[str]) -> None:
    """Run `rose`; SIGUSR1 begins to note files, and the next one writes them."""
    crossed: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            crossed.add(frame.f_code.co_filename)

    def switch(*_: object) -> None:
        if target.with_suffix(".begun").exists():
            partial = target.with_suffix(".partial")
            partial.write_text("\n".join(crossed))
            partial.rename(target)
        else:
            crossed.clear()
            target.with_suffix(".begun").touch()

    signal.signal(signal.SIGUSR1, switch)
    threading.setprofile(note)
    sys.setprofile(note)
    sys.argv = program
    run_module(program[0], run_name="__main__", alter_sys=True)


def _files_of(target: Path) -> set[str]:
    names = [name.removeprefix(f"{_ROOT}/") for name in target.read_text().splitlines()]
    return {name for name in names if name.startswith(_PACKAGES)}


def _wait(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_done():
        if time.monotonic() > until:
            raise TimeoutError("a process did not answer a signal for 60 s")
        time.sleep(0.02)


def measure(folder: Path) -> dict[str, list[str]]:
    """The files by process: those that each of three chats crosses."""
    with EmbeddedBroker() as broker:
        worker = _process("worker", folder, {"redis_url": broker.url, "http_port": free_port()})
        storage = str(folder / "files")
        settings = {"redis_url": broker.url, "port": free_port(), "open": True, "storage": storage}
        gateway = _process("gateway", folder, settings)
        with worker, gateway:
            worker.wait_ready()
            gateway.wait_ready()
            _chat(gateway.http_port)  # what it reads is cached for the next
            chats = [_noted_chat(folder, worker, gateway) for _ in range(3)]
    # What a process does beside a chat now and then is in some of them only.
    return {
        name: sorted(set.intersection(*(chat[name] for chat in chats)))
        for name in ("gateway", "worker")
    }


def _noted_chat(
    folder: Path, worker: ServiceProcess, gateway: ServiceProcess
) -> dict[str, set[str]]:
    notes = {process.name: folder / process.name for process in (worker, gateway)}
    for process in (worker, gateway):
        process.signal(signal.SIGUSR1)
        _wait(notes[process.name].with_suffix(".begun").exists)
    _chat(gateway.http_port)
    for process in (worker, gateway):
        process.signal(signal.SIGUSR1)
        _wait(notes[process.name].exists)
    files = {name: _files_of(note) for name, note in notes.items()}
    for note in notes.values():
        note.unlink()
        note.with_suffix(".begun").unlink()
    return files


def _process(name: str, folder: Path, settings: dict[str, Any]) -> ServiceProcess:
    program = ("benchmarks.crossing", "--record", str(folder / name), "rose_cli", name)
    port = settings.get("port") or settings["http_port"]
    return ServiceProcess(name, port, program, settings)


def _chat(port: int) -> None:
    body = {
        "model": "built-in",
        "stream": True,
        "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    }
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60)
    answer.raise_for_status()


def main() -> None:
    if sys.argv[1:2] == ["--record"]:
        _record(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the files, too")
    lists = parser.parse_args().list
    with tempfile.TemporaryDirectory() as folder:
        files = measure(Path(folder))
    for name, crossed in files.items():
        print(f"{name}: {len(crossed)}")
        if lists:
            print("\n".join(f"  {file}" for file in crossed))
    print(f"together: {len(set().union(*files.values()))}")


if __name__ == "__main__":
    main()
