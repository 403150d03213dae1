"""Hostile requests, drawn from a grammar of their own, while somebody else follows a stream."""

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx
import redis

from tests.support.gateway import Deployment

_MAX_BYTES = 4 * 1024 * 1024 - 64
_MAX_CONNECTIONS = 4
#: By which a stream may wait longer beside hostile requests.
_MOST_WAIT_S = 0.25

_CHAT = '"model":"null","max_tokens":2,"messages":[{"role":"user","content":"x"}]'
#: Where in a request something is repeated, nested or long: HERE.
_SKELETONS = {
    "/v1/chat/completions": (
        '{"model":"null","max_tokens":2,"messages":[HERE]}',
        '{"model":"null","max_tokens":2,"messages":[{"role":"user","content":[HERE]}]}',
        '{"model":"null","max_tokens":2,"messages":[{"role":"assistant","tool_calls":[HERE]}]}',
        '{"model":"null","max_tokens":2,"messages":[{"role":"user","content":"x",OBJECT}]}',
        *(
            f'{{{_CHAT},"{name}":[HERE]}}'
            for name in ("stop", "tools", "stop_token_ids", "guided_choice", "modalities", "zoo")
        ),
        *(
            f'{{{_CHAT},"{name}":{{OBJECT}}}}'
            for name in ("logit_bias", "metadata", "chat_template_kwargs", "guided_json", "zoo")
        ),
        f"{{{_CHAT},OBJECT}}",
        f'{{{_CHAT},"temperature":VALUE}}',
        '{"model":"null","max_tokens":2,"messages":VALUE}',
        '{"model":"null","max_tokens":2,"messages":[{"role":"user","content":VALUE}]}',
        '{"model":"null","messages":[{"role":"assistant","tool_calls":[{"id":"a","function":'
        '{"name":"f","arguments":TEXT}}]}]}',
    ),
    "/v1/completions": (
        *(
            '{"model":"null","max_tokens":2,"prompt":[HERE]}',
            '{"model":"null","max_tokens":2,"prompt":[[HERE]]}',
        ),
        '{"model":"null","max_tokens":2,"prompt":VALUE}',
    ),
    "/v1/responses": (
        '{"model":"null","max_output_tokens":2,"input":[HERE]}',
        '{"model":"null","max_output_tokens":2,"input":[{"role":"user","content":[HERE]}]}',
        '{"model":"null","max_output_tokens":2,"input":[{"type":"reasoning","summary":[HERE]}]}',
        *(
            '{"model":"null","max_output_tokens":2,"input":"x","include":[HERE]}',
            '{"model":"null","max_output_tokens":2,"input":VALUE}',
        ),
    ),
    "/v1/batches": (
        '{"input_file_id":"file-1","endpoint":"/v1/completions","completion_window":"24h",OBJECT}',
        '{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h",'
        '"metadata":{OBJECT}}',
    ),
    "/": ("[HERE]", "VALUE"),
    "/v1/nothing": ("[HERE]",),
}
_ITEMS = (
    *("1", "0.5", '""', '"a"', "null", "true", "{}", "[]", "[[]]", '{"type":"text","text":""}'),
    *('{"role":"user","content":""}', '{"role":1}', '{"a":{}}', "50257", "1e400", "-1"),
    *('{"type":"function","function":{"name":"f"}}', '{"type":"x"}', '["",""]'),
)
_PAIRS = ('"%d":1', '"k%d":null', '"%d":""', '"k%d":{}', '"user":"a"', '"k%d":[]', '"%d":false')
_UNITS = ("a", "\\\\", '\\"', "\\u0000", "\\ud83d\\ude00", "é", "[{", ",", " ", "\\n")


@dataclass(slots=True)
class HostileOutcome:
    seed: int
    statuses: Counter[int] = field(default_factory=Counter)
    """0: no answer, the connection was closed"""
    longest_wait_s: float = 0.0
    """between two events of the stream beside, less what threads waited for a processor in between,
    which other programs of the machine bring about"""
    quiet_wait_s: float = 0.0
    """the same without hostile requests"""
    grown_mb: dict[str, int] = field(default_factory=dict)
    """each process, at its most"""

    redelivered: int = 0
    """jobs that a worker has lost"""

    @property
    def problems(self) -> list[str]:
        found = [f"{count} answers {s}" for s, count in self.statuses.items() if s >= 500]
        if (longer_s := self.longest_wait_s - self.quiet_wait_s) > _MOST_WAIT_S:
            found.append(f"the stream waited {1000 * longer_s:.0f} ms longer than without")
        found += [f"{name} grew by {mb} MB" for name, mb in self.grown_mb.items() if mb > 300]
        if self.redelivered:
            found.append(f"{self.redelivered} jobs were delivered again")
        return found

    def __str__(self) -> str:
        answers = ", ".join(f"{s}: {n}" for s, n in sorted(self.statuses.items()))
        grown = ", ".join(f"{name} {mb} MB" for name, mb in self.grown_mb.items())
        return (
            f"seed {self.seed}: {self.statuses.total()} hostile requests ({answers}); a stream "
            f"waited {1000 * self.longest_wait_s:.0f} ms at most, {1000 * self.quiet_wait_s:.0f} "
            f"without; grown: {grown}"
        )


def attack(deployment: Deployment, *, count: int, seed: int, secret: str) -> HostileOutcome:
    """Send so many, a few at a time. The worker should take some time for each token."""
    draw = random.Random(seed)
    outcome = HostileOutcome(seed)
    requests = [request(draw, secret) for _ in range(count)]
    pids = {"gateway": deployment.gateway.pid, "worker": deployment.workers[0].pid}
    before = {name: _memory_mb(pid, "VmRSS") for name, pid in pids.items()}
    with _followed_stream(deployment, secret) as waits:
        time.sleep(3)  # nothing decides on it
        outcome.quiet_wait_s = max(waits, default=0.0)
        waits.clear()
        left, lock = iter(requests), threading.Lock()

        def send_all() -> None:
            while True:
                with lock:
                    if (one := next(left, None)) is None:
                        return
                status = _send(deployment.port, one)
                with lock:
                    outcome.statuses[status] += 1

        senders = [threading.Thread(target=send_all) for _ in range(_MAX_CONNECTIONS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        outcome.longest_wait_s = max(waits, default=0.0)
    outcome.redelivered = int(deployment.workers[0].metrics()["rose_jobs_redelivered_total"])
    for name, pid in pids.items():
        outcome.grown_mb[name] = _memory_mb(pid, "VmHWM") - before[name]
    return outcome


def request(draw: random.Random, secret: str) -> bytes:
    """A whole one, as it goes over a connection."""
    kind = draw.choice((*([_with_body] * 8), _upload, _with_headers, _with_query))
    return kind(draw, secret)


def _with_body(draw: random.Random, secret: str) -> bytes:
    path = draw.choice(list(_SKELETONS))
    return _framed(draw, "POST", path, secret, body(draw, path))


def body(draw: random.Random, path: str) -> bytes:
    """JSON, or nearly."""
    size = int(2 ** draw.uniform(10, 22))
    text = draw.choice(_SKELETONS[path])
    for hole, fill in (("HERE", _items), ("OBJECT", _pairs), ("VALUE", _value), ("TEXT", _text)):
        if hole in text:
            text = text.replace(hole, fill(draw, size))
    if draw.random() < 0.1:
        text = text[: draw.randrange(1, len(text))]
    return text.encode("utf-8", "replace")[:_MAX_BYTES]


def _items(draw: random.Random, size: int) -> str:
    item = draw.choice(_ITEMS)
    good = draw.choice(_ITEMS) + "," if draw.random() < 0.5 else ""
    return good + ",".join([item] * max(1, size // (len(item) + 1)))


def _pairs(draw: random.Random, size: int) -> str:
    pair = draw.choice(_PAIRS)
    count = max(1, size // (len(pair) + 5))
    return ",".join(pair % number if "%" in pair else pair for number in range(count))


def _value(draw: random.Random, size: int) -> str:
    return draw.choice((_text, _number, _nested, lambda d, s: f"[{_items(d, s)}]"))(draw, size)


def _text(draw: random.Random, size: int) -> str:
    if draw.random() < 0.3:  # JSON within JSON
        return json.dumps(f'{{"a":[{_items(draw, size // 2)}]}}')
    unit = draw.choice(_UNITS)
    return '"' + unit * (size // len(unit)) + '"'


def _number(draw: random.Random, size: int) -> str:
    return draw.choice(("1", "0.", "-", "1e", "0.0")) + draw.choice("019") * size


def _nested(draw: random.Random, size: int) -> str:
    left, right = draw.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    depth = draw.choice((20, 99, 101, 500, size // len(left)))
    return left * depth + "1" + right * depth


def _upload(draw: random.Random, secret: str) -> bytes:
    line = body(draw, "/v1/completions").replace(b"\n", b" ")
    parts = [
        b'content-disposition: form-data; name="purpose"\r\n\r\nbatch',
        b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + draw.choice((line, b"\r\n--b" * (len(line) // 5), b"\r" * len(line), b"{}\n" * 9)),
    ]
    if draw.random() < 0.5:
        parts.insert(0, b"x: y\r\n" * draw.choice((5, 500, 50_000)) + b"\r\nz")
    form = b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"
    kind = "content-type: multipart/form-data; boundary=b\r\n"
    return _framed(draw, "POST", "/v1/files", secret, form, kind)


def _with_headers(draw: random.Random, secret: str) -> bytes:
    one = draw.choice(("x: y\r\n", "a:\r\n", f"x: {'y' * 7000}\r\n", "host: b\r\n"))
    return _framed(draw, "GET", "/v1/models", secret, b"", one * int(2 ** draw.uniform(1, 14)))


def _with_query(draw: random.Random, secret: str) -> bytes:
    pair = draw.choice(("limit=1&", "include=x&", "a&", "%00=%ff&", "after=" + "x" * 900 + "&"))
    path = draw.choice(("/v1/files", "/v1/responses/resp_1", "/v1/jobs", "/v1/models/" + "x" * 900))
    return _framed(draw, "GET", f"{path}?{pair * draw.choice((1, 100, 6_000))}", secret, b"")


def _framed(
    draw: random.Random, method: str, path: str, secret: str, content: bytes, headers: str = ""
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}"
    head += f"authorization: Bearer {secret}\r\n"
    if not content or draw.random() < 0.7:
        return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
    size = draw.choice((1, 7, 65_536)) if len(content) < 100_000 else 65_536
    extension = b";" + b"a=b" * draw.choice((0, 0, 1, 1_000))
    chunks = b"".join(
        b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in _cut(content, size)
    )
    trailers = b"x-request-id: a\r\n" * draw.choice((0, 0, 1, 100_000))
    head += "transfer-encoding: chunked\r\n\r\n"
    return head.encode() + chunks + b"0\r\n" + trailers + b"\r\n"


def _cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


def _send(port: int, content: bytes) -> int:
    """The status of the answer, 0 where there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        received = b""
        with suppress(OSError):  # refused before all was sent
            client.sendall(content)
        with suppress(OSError):
            while b"\r\n" not in received and (piece := client.recv(65536)):
                received += piece
    return int(received.split()[1]) if received.startswith(b"HTTP/1.1 ") else 0


@contextmanager
def _followed_stream(deployment: Deployment, secret: str) -> Iterator[list[float]]:
    """The waits between the events of streams that follow each other, meanwhile, as
    `HostileOutcome.longest_wait_s` counts them."""
    waits: list[float] = []
    stopping = threading.Event()
    ask = {"model": "null", "prompt": "hi", "max_tokens": 100_000, "stream": True}
    headers = {"authorization": f"Bearer {secret}"}

    with redis.Redis.from_url(deployment.redis_url) as client:
        pids = client.info("server")["process_id"], deployment.gateway.pid
    processes = [Path(f"/proc/{pid}/task") for pid in (*pids, deployment.workers[0].pid)]

    def follow() -> None:
        own = Path(f"/proc/self/task/{threading.get_native_id()}")
        url = f"{deployment.url}/completions"
        while not stopping.is_set():
            with httpx.stream("POST", url, json=ask, headers=headers, timeout=120) as answer:
                last = None
                for _ in answer.iter_raw():
                    tasks = [own, *(task for process in processes for task in process.iterdir())]
                    now = time.perf_counter() - sum(map(_queued_s, tasks))
                    if last is not None:
                        waits.append(now - last)
                    last = now
                    if stopping.is_set():
                        return

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield waits
    finally:
        stopping.set()
        follower.join()


def _queued_s(task: Path) -> float:
    """How long a thread has waited for a processor."""
    with suppress(OSError):  # it has ended
        return int((task / "schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _memory_mb(pid: int | None, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024
