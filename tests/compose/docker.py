"""A Docker daemon for the tests: the one that answers, or one of our own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.bench import wait_until

#: Layers of images stay here from run to run.
DATA = Path(__file__).parents[2] / "build" / "compose"


class NoDocker(Exception):
    """There is no daemon, and none can be started: the message says why."""


class Docker:
    """The command-line clients, for one daemon."""

    def __init__(self, host: str | None) -> None:
        self.env = dict(os.environ) | {"DOCKER_BUILDKIT": "1"}
        if host is not None:
            self.env["DOCKER_HOST"] = host
        self._program = _find_client(self.env)
        self._compose = _find_compose(self.env, self._program)

    def __call__(self, *words: str | Path, timeout: float = 120, **env: str) -> str:
        """Raises: CalledProcessError, with all that the client said."""
        return self._run([self._program, *map(str, words)], timeout, env)

    def compose(self, *words: str | Path, timeout: float = 120, **env: str) -> str:
        return self._run([*self._compose, *map(str, words)], timeout, env)

    def script(self, script: str, folder: Path, env: dict[str, str]) -> dict[str, str]:
        """Run a shell's commands, in which `docker` and `docker compose` are these clients.

        Returns the environment that it leaves: what it has set, and not what it has unset.
        """
        compose = " ".join(self._compose)
        clients = f'docker() {{ if [ "$1" = compose ]; then shift; {compose} "$@"; '
        clients += f'else command {self._program} "$@"; fi; }}\n'
        left = folder / "environment"
        words = ["/bin/sh", "-aeuc", f'cd "{folder}"\n{clients}{script}\nenv -0 > {left}']
        self._run(words, 600, env)
        return dict(one.split("=", 1) for one in left.read_text().split("\0") if one)

    def answers(self, *words: str | Path, timeout: float = 120) -> bool:
        try:
            self(*words, timeout=timeout)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
        return True

    def _run(self, words: Sequence[str], timeout: float, env: dict[str, str]) -> str:
        ended = subprocess.run(
            words,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        if ended.returncode:
            print(" ".join(words), ended.stdout, sep="\n")
            raise subprocess.CalledProcessError(ended.returncode, list(words), ended.stdout)
        return ended.stdout.strip()


@contextmanager
def any_docker() -> Iterator[Docker]:
    """Raises: NoDocker."""
    given = Docker(None)
    if given.answers("info", timeout=20):
        yield given
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise NoDocker("no Docker daemon answers, and starting one needs root and dockerd on PATH")
    with own_daemon() as own:
        yield own


@contextmanager
def own_daemon() -> Iterator[Docker]:
    DATA.mkdir(parents=True, exist_ok=True)
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="rose-docker-") as folder:
        socket, log = Path(folder, "docker.sock"), Path(folder, "log")
        words: list[str | Path] = [
            "dockerd",
            "--data-root",
            DATA / "docker",
            "--exec-root",
            Path(folder, "exec"),
        ]
        words += ["--pidfile", Path(folder, "pid"), "--host", f"unix://{socket}"]
        with log.open("wb") as output:
            # In a session of its own: Ctrl-C is for the tests, which then stop it.
            daemon = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
        try:
            own = Docker(f"unix://{socket}")
            wait_until(lambda: daemon.poll() is not None or own.answers("info", timeout=20), 60)
            if daemon.poll() is not None:
                raise NoDocker(f"dockerd does not run here: {log.read_text()[-500:].strip()}")
            yield own
        finally:
            daemon.terminate()
            daemon.wait(60)


def _find_client(env: dict[str, str]) -> str:
    """The first on PATH that can build with BuildKit: before 23 without a plugin."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = shutil.which("docker", path=folder) if folder else None
        if program is None:
            continue
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        version = said.partition("version ")[2].partition(".")[0]
        if version.isdigit() and int(version) < 23:
            return program
        if not subprocess.run([program, "buildx", "version"], capture_output=True).returncode:
            return program
    raise NoDocker("needs a docker client that can build (Debian: apt-get install docker.io)")


def _find_compose(env: dict[str, str], client: str) -> list[str]:
    for words in ([client, "compose"], ["docker-compose"]):
        if shutil.which(words[0]) is None:
            continue
        if not subprocess.run([*words, "version"], env=env, capture_output=True).returncode:
            return words
    raise NoDocker("needs docker compose (Debian: apt-get install docker-compose)")
