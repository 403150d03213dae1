"""An event loop on a thread of its own, for callers in other threads that block.

    thread = LoopThread(make_client)
    status = thread.call(lambda client: client.queue_status())

Nothing here holds a lock while it works, because two things may run in the middle of any line: a
signal handler that raises, and a finalizer of the garbage collector. What crosses threads is a
note in a deque, and an outcome in a queue that one caller reads once. A finalizer leaves a note and
returns.

A forked child has none of its parent's threads, but its descriptors. It closes them, which sends
nothing, and starts afresh.
"""

import asyncio
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from rose.errors import BrokerUnavailable, ClientClosed, WrongEventLoop


class Closing(Protocol):
    async def aclose(self) -> None: ...


R = TypeVar("R", bound=Closing)
T = TypeVar("T")


class _Loop(asyncio.SelectorEventLoop):
    """With `poll`: an epoll would be one and the same in a forked child, whose changes to it would
    be its parent's."""

    def __init__(self) -> None:
        poll = getattr(selectors, "PollSelector", selectors.DefaultSelector)
        super().__init__(poll())

    def close_in_child(self) -> None:
        """Only the descriptors of this process."""
        for sock in (self._csock, self._ssock):  # type: ignore[attr-defined]
            if sock is not None:
                sock.close()


class Note(Protocol):
    """What a loop is to do."""

    def begin(self) -> None:
        """Called once, by the loop."""

    def refuse(self, error: Exception) -> None:
        """Instead of `begin`, or in the midst of it: there is no loop any more."""


class Runner(Generic[R]):
    """A loop, its thread, and what it serves. The thread begins with the first note."""

    def __init__(self, resource: R) -> None:
        self.resource = resource
        self.working: set[Note] = set()
        """notes that have begun and not ended; only the loop changes it"""
        self._notes: deque[Note] = deque()
        self._loop: _Loop | None = None
        self._may_begin = [True]
        self._thread: threading.Thread | None = None
        self._ended = False
        self.is_parents = False
        self._closing: asyncio.Task[None] | None = None

    def post(self, note: Note) -> None:
        """Takes no lock and waits for nothing."""
        self._notes.append(note)
        if self._ended:
            self._refuse_all(ClientClosed())
        else:
            self._wake()

    def start(self) -> None:
        """Unless it runs. Of threads that start it together the first one to run serves, and the
        others end at once."""
        if self._thread is None:
            threading.Thread(target=self._run, name="rose-client", daemon=True).start()

    def join(self) -> None:
        if self._thread is not None and not self.is_current:
            self._thread.join()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the loop."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def stop(self) -> None:
        """Close the resource, and end the thread. In the loop."""
        if self._loop is not None and self._closing is None:
            self._closing = self._loop.create_task(self._close())

    def leave_to_parent(self) -> None:
        """In a forked child, where nobody runs the loop."""
        self._ended = self.is_parents = True
        if self._loop is not None:
            self._loop.close_in_child()
        error = BrokerUnavailable("this process was forked during the call, which is its parent's")
        for note in list(self.working):
            note.refuse(error)
        self._refuse_all(error)

    async def _close(self) -> None:
        try:
            await self.resource.aclose()
        finally:
            asyncio.get_running_loop().stop()

    def _wake(self) -> None:
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # it is closed: `_ended` is about to be set
                loop.call_soon_threadsafe(self._begin_all)

    def _run(self) -> None:
        try:
            self._may_begin.pop()
        except IndexError:
            return
        self._thread = threading.current_thread()
        loop = _Loop()
        try:
            self._loop = loop
            loop.call_soon(self._begin_all)  # whoever left a note before this did not wake it
            loop.run_forever()
            self._cancel_all(loop)
        finally:
            loop.close()
            self._ended = True
            for note in list(self.working):
                note.refuse(ClientClosed())
            self._refuse_all(ClientClosed())

    @staticmethod
    def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())

    def _begin_all(self) -> None:
        while (note := self._next_note()) is not None:
            if self._closing is None:
                note.begin()
            else:
                note.refuse(ClientClosed())

    def _refuse_all(self, error: Exception) -> None:
        while (note := self._next_note()) is not None:
            note.refuse(error)

    def _next_note(self) -> Note | None:
        try:
            return self._notes.popleft()
        except IndexError:
            return None


class _Stop:
    """The last note."""

    def __init__(self, runner: Runner[Any]) -> None:
        self._runner = runner

    def begin(self) -> None:
        self._runner.stop()

    def refuse(self, error: Exception) -> None:
        """It has stopped."""


class Work(Generic[R]):
    """A note that is a task: it begins, may be cancelled, and ends once."""

    def __init__(self, runner: Runner[R], work: Callable[[R], Coroutine[Any, Any, Any]]) -> None:
        self.runner = runner
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._abandoned = False

    def begin(self) -> None:
        if self._task is None and not self._abandoned:
            self._task = asyncio.create_task(self._do())
            self.runner.working.add(self)

    def abandon(self) -> None:
        """Nobody waits for it any more. From any thread, and from a finalizer."""
        self._abandoned = True
        self.runner.post(_Cancel(self))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self.runner.working.discard(self)  # it may not have taken its first step

    async def _do(self) -> None:
        """Not by a callback of the task, which would come a turn of the loop later."""
        try:
            result = await self._work(self.runner.resource)
        except asyncio.CancelledError:
            self.refuse(ClientClosed())
            raise
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.refuse(error)
        else:
            self.finish(result)
        finally:
            self.runner.working.discard(self)

    def finish(self, result: Any) -> None:
        raise NotImplementedError

    def refuse(self, error: BaseException) -> None:
        raise NotImplementedError


class _Cancel:
    def __init__(self, work: Work[Any]) -> None:
        self._work = work

    def begin(self) -> None:
        self._work.cancel()

    def refuse(self, error: Exception) -> None:
        """It ends anyway."""


class _Call(Work[R], Generic[R, T]):
    """Work for whose result one thread waits."""

    def __init__(self, runner: Runner[R], work: Callable[[R], Coroutine[Any, Any, T]]) -> None:
        super().__init__(runner, work)
        self.ended = False
        self._outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def finish(self, result: Any) -> None:
        self.ended = True
        self._outcome.put((result, None))

    def refuse(self, error: BaseException) -> None:
        self.ended = True
        self._outcome.put((None, error))

    def wait(self) -> T:
        result, error = self._outcome.get()
        if error is not None:
            try:
                raise error
            finally:
                error = self._task = None  # its traceback holds this frame
        value: T = result
        return value


class LoopThread(Generic[R]):
    """Of one resource, made by `make` in each process that uses it. Any thread may call."""

    def __init__(self, make: Callable[[], R]) -> None:
        self._make = make
        self._runners: dict[str, Runner[R]] = {"here": Runner(make())}
        self._closed = False
        _living.add(self)

    def __del__(self) -> None:
        runner = getattr(self, "_runners", {}).get("here")
        if runner is not None:
            runner.post(_Stop(runner))

    def call(self, work: Callable[[R], Coroutine[Any, Any, T]]) -> T:
        """Run it in the loop, and wait. A caller that is interrupted while it waits abandons it.

        Raises: what the work raises; ClientClosed
        """
        runner = self.runner()
        if runner.is_current:
            raise WrongEventLoop(
                "a blocking client was called on the thread of its own event loop (by a finalizer, "
                "perhaps): it would wait for itself; do it in another thread"
            )
        call = _Call(runner, work)
        try:
            runner.start()
            runner.post(call)
            return call.wait()
        except BaseException:
            if not call.ended:
                call.abandon()
            raise

    def runner(self) -> Runner[R]:
        """Raises: ClientClosed"""
        if self._closed:
            raise ClientClosed()
        runner = self._runners.get("here")
        if runner is None:  # in a forked child
            runner = self._runners.setdefault("here", Runner(self._make()))
        return runner

    def close(self) -> None:
        """Ends the thread, and waits for that."""
        self._closed = True
        runner = self._runners.get("here")
        if runner is not None:
            runner.post(_Stop(runner))
            runner.join()

    def leave_to_parent(self) -> None:
        runner = self._runners.pop("here", None)
        if runner is not None:
            _inherited.append(runner)
            runner.leave_to_parent()


#: Each is told of a fork.
_living: WeakSet[LoopThread[Any]] = WeakSet()

#: Of the parent: nothing of it may run a finalizer here.
_inherited: list[Runner[Any]] = []


def _leave_all_to_parent() -> None:
    for thread in list(_living):
        thread.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
