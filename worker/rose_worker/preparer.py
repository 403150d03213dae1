"""The process that prepares what strangers send: it renders, tokenizes and tries grammars.

    worker --- control socket ---> preparer          loads the tokenizer, then forks
       |                              | fork
       +------ a socket each -----> child            prepares one job after another

The worker forks the preparer when it starts, before it has threads. The preparer has one thread,
knows neither Redis nor torch, and has the tokenizer, so a child is there in milliseconds. A child
arms a timer of processor time for each job, and its address space may grow by a fixed size. Beyond
either it dies, and its job fails. All end with the worker, whose sockets they read.

One that dies is replaced by a fresh interpreter. Its children go on, and are nobody's.

Messages are JSON behind their length. A file descriptor travels with the request for a child.
"""

import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

HEADER = struct.Struct("<cI")
_SECONDS = struct.Struct("<d")
#: The kinds of requests, behind their processor time: an encoded job, a grammar as JSON.
PROMPT, GRAMMAR = b"p", b"g"
#: The kinds of answers: token ids, an error as JSON, done.
IDS, ERROR, DONE = b"i", b"e", b"d"

#: Beyond what the preparer has, in bytes.
CHILD_MEMORY = 256 << 20
LOAD_MEMORY = 2 << 30
#: Of processor time.
LOAD_S = 10.0
GRAMMAR_S = 1.0


def fork() -> tuple[int, socket.socket]:
    """Start the preparer. Returns its process id and the socket to it. Before threads exist."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        # Whoever waits for the worker's end waits for the end of what it has opened.
        os.closerange(3, theirs.fileno())
        os.closerange(theirs.fileno() + 1, 1 << 16)
        _run(theirs)
    theirs.close()
    return pid, ours


def spawn() -> tuple[int, socket.socket]:
    """As `fork`, from a process with threads: a fresh interpreter, which takes seconds."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno())]
        return os.posix_spawn(sys.executable, command, os.environ), ours


def _run(control: socket.socket) -> NoReturn:
    status = 1
    try:
        _serve(control)
    except (EOFError, ConnectionError, KeyboardInterrupt):
        status = 0
    finally:
        os._exit(status)


def _serve(control: socket.socket) -> NoReturn:
    _behave()
    prompts = _import()
    arm(LOAD_S)
    limit_memory(LOAD_MEMORY)
    model = prompts.model_of(json.loads(read(control)[1]))
    send(control, json.dumps(dict(model.formats)).encode())
    arm(0)
    limit_memory(None)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4, 1)
        if not message:
            raise EOFError
        if descriptors:
            child = os.fork()
            if child == 0:
                control.close()
                limit_memory(CHILD_MEMORY)
                with socket.socket(fileno=descriptors[0]) as jobs:
                    while True:
                        _answer(jobs, model.prepare)
            os.close(descriptors[0])
            control.sendall(struct.pack("<i", child))
        else:
            _, status = os.waitpid(struct.unpack("<i", message)[0], 0)
            control.sendall(struct.pack("<i", status))


def _behave() -> None:
    # A signal may be sent to all of a group: this process ends after the worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with suppress(OSError):  # the kernel ends it before the worker
        Path("/proc/self/oom_score_adj").write_text("1000")


def _answer(jobs: socket.socket, prepare: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
    kind, request = read(jobs)
    (seconds,) = _SECONDS.unpack_from(request)
    arm(seconds)
    try:
        answer, payload = prepare(kind, request[_SECONDS.size :])
    except MemoryError:  # as if the system had ended it
        os._exit(1)
    arm(0)
    send(jobs, payload, answer)


def _import() -> Any:
    """The module that knows the engine; without torch, which takes seconds and starts threads."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    return importlib.import_module("rose_worker.prompts")


def request_of(seconds: float, body: bytes) -> bytes:
    return _SECONDS.pack(seconds) + body


def describe(tokenizer: Any | None, vocab_size: int, ends: Collection[int]) -> bytes:
    """A tokenizer of transformers' fast kind, if there is one, as the preparer reads it."""
    described: dict[str, Any] = {"tokenizer": None, "vocab_size": vocab_size, "ends": [*ends]}
    if tokenizer is not None:
        tokens = tokenizer.special_tokens_map.items()
        described |= {
            "tokenizer": tokenizer.backend_tokenizer.to_str(),
            "special": {name: str(token) for name, token in tokens if not isinstance(token, list)},
            "chat_template": tokenizer.chat_template,
        }
    return json.dumps(described).encode()


def arm(seconds: float) -> None:
    """This much more processor time, then SIGPROF ends the process, whatever runs; 0: any."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory(more: int | None) -> None:
    """So many bytes beyond what is mapped now; None: no limit but that of the system."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard
    if more is not None and sys.platform == "linux":
        mapped, *_ = Path("/proc/self/statm").read_text().split()
        soft = int(mapped) * resource.getpagesize() + more
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def send(connection: socket.socket, payload: bytes, kind: bytes = DONE) -> None:
    connection.sendall(HEADER.pack(kind, len(payload)) + payload)


def read(connection: socket.socket) -> tuple[bytes, bytes]:
    """The kind and the payload. Raises EOFError: the other side has gone."""
    kind, length = HEADER.unpack(_exactly(connection, HEADER.size))
    return kind, _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


if __name__ == "__main__":
    _run(socket.socket(fileno=int(sys.argv[1])))
