"""Pictures of what the real things show: `python -m rose_cli.demo.pictures FOLDER`."""

import io
import time
from pathlib import Path

import typer
from rich.text import Text

from rose.protocol import Priority
from rose_cli.console import Console
from rose_cli.demo.prompts import REQUESTS
from rose_cli.demo.run import play, show, staged
from rose_cli.demo.state import DemoState
from rose_cli.demo.view import View, draw
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import two_workers
from rose_cli.top.frames import Top
from rose_cli.top.view import export, picture
from rose_producer import Client

_WIDTH = 100
_FRAMES = 40
_FRAME_S = 0.5
#: Slow enough that a moment of many streams can be caught.
_STEP_S = 0.02
_SLOTS = 8
#: More than two workers can do, so that something waits.
_RATE = 4.0


def top_picture() -> str:
    """Two workers under a load, as `rose top` sees them."""
    with (
        EmbeddedBroker() as broker,
        two_workers(
            broker.url, min_step_s=_STEP_S, max_batch_size=_SLOTS, kv_cache_tokens=4096
        ) as workers,
        Client(redis_url=broker.url) as client,
    ):
        for worker in workers:
            worker.wait_ready()
        top = Top(client, [("127.0.0.1", worker.http_port) for worker in workers])
        for frame_number in range(_FRAMES):
            # More at some times than at others.
            for number in range(int(_RATE * _FRAME_S * (1 + (frame_number // 8) % 3))):
                request = REQUESTS[(frame_number + number) % len(REQUESTS)]
                priority = list(Priority)[(frame_number + number) % 3]
                client.submit(request.prompt, priority=priority, **request.sampling)
            frame = top.frame()
            time.sleep(_FRAME_S)
        return export(frame)


class _Moment(View):
    """Keeps the notes, and how the streams stood a little after the SIGKILL."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._taken = False

    def note(self, line: str) -> None:
        self._console.print(Text(line, style="bold"))

    def refresh(self, state: DemoState) -> None:
        going_on = [record for record in state.moved if record.resumed and not record.ended]
        if going_on and 2 * len(going_on) >= len(state.moved) and not self._taken:
            self._taken = True
            self._console.print(draw(state, self._console.width))


def demo_picture() -> str:
    """`rose demo`: the notes, the streams once half of them go on, and the comparison."""
    console = Console(
        record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
    )
    with staged() as stage:
        show(play(stage, _Moment(console)), console)
    return picture(console, "rose demo")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "top.svg").write_text(top_picture())
    (folder / "demo.svg").write_text(demo_picture())


if __name__ == "__main__":
    typer.run(main)
