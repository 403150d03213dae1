"""The shipped users: what deploy/redis/users.acl allows, and what they really do."""

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import redis

from rose_cli.local.broker import EmbeddedBroker
from tests.support.proxy import Proxy

DEPLOY = Path(__file__).parents[2] / "deploy" / "redis"
PASSWORDS = {
    "producer": "producer-secret-1",
    "worker": "worker-secret-22",
    "scaler": "scaler-secret-333",
    "operator": "operator-secret-4",
    "gateway": "gateway-secret-66",
    "admin": "admin-secret-55555",
    "broad": "broad-secret-7777",
}

#: A command, and the kind of key it is for: "" where it is for none, "*" for any.
Right = tuple[str, str]

_KIND = re.compile(r"rose:(?:(?:\{[^}]*\}|gateway(?::\{bulk\})?):)?(\w+|\*)")
_CONTAINERS = {"acl", "client", "cluster", "command", "script", "xgroup", "xinfo"}


def filled_users(passwords: Mapping[str, str] = PASSWORDS, **variables: str) -> str:
    """users.acl as Redis reads it, made by the script that is shipped for that."""
    given = {f"{user}_PASSWORD".upper(): password for user, password in passwords.items()}
    made = subprocess.run(
        ["/bin/sh", DEPLOY / "fill-users.sh"],
        env={"PATH": "/usr/bin:/bin", **given, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout


def guarded_server(folder: Path, **options: str) -> EmbeddedBroker:
    """A server with the shipped configuration and users, `options`, and an administrator."""
    users = folder / "users.acl"
    users.write_text(filled_users())
    return EmbeddedBroker(
        fake=False,
        config=DEPLOY / "redis.conf",
        options={"aclfile": str(users), **options},
        url=f"redis://admin:{PASSWORDS['admin']}@127.0.0.1:{{port}}/0",
    )


def allowed() -> dict[str, set[Right]]:
    """What each user may do, but for what belongs to any connection."""
    return {line.split()[1]: set(_rights(line)) for line in filled_users().splitlines()}


def rules(line: str) -> list[str]:
    """Those of a user, for ACL SETUSER: a selector is one of them."""
    return re.findall(r"\([^)]*\)|\S+", line)[2:]


def _rights(line: str) -> Iterator[Right]:
    for selector in re.findall(r"\(([^)]*)\)", line):
        kinds = _KIND.findall(selector)
        yield from (
            (name[1:], kind) for name in selector.split() for kind in kinds if name[0] == "+"
        )
    for name in re.sub(r"\([^)]*\)", "", line).split():
        if name.startswith("+") and name != "+@connection":
            yield name[1:], ""


class Watch:
    """Every command that Redis carries out, by who asked for it: as MONITOR tells."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Right]] = []

    def used(self, through: Proxy) -> set[Right]:
        """By the user whose connections come through this proxy."""
        return {right for source, right in self._seen if source in through.sources}

    @contextmanager
    def watching(self, admin: redis.Redis) -> Iterator[None]:
        with admin.monitor() as monitor:
            thread = threading.Thread(target=self._read, args=(monitor,))
            thread.start()
            try:
                yield
            finally:
                admin.execute_command("ECHO", "the watch is over")
                thread.join()

    def _read(self, monitor: redis.client.Monitor) -> None:
        source = ""
        while (said := monitor.next_command())["command"] != "ECHO the watch is over":
            # A script's commands come right after its call.
            if said["client_type"] != "lua":
                source = f"{said['client_address']}:{said['client_port']}"
            self._seen.append((source, _right(said["command"].split(" ", 20))))


def _right(words: list[str]) -> Right:
    name = words[0].lower()
    if name in ("eval", "evalsha"):
        return name, "*"
    if name in _CONTAINERS and len(words) > 1:
        name = f"{name}|{words[1].lower()}"
    if name.endswith(("publish", "subscribe")):
        return name, ""
    return name, next(iter(_KIND.findall(" ".join(words[1:]))), "")
