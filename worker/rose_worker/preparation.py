"""Prepares jobs in children of the preparer, and ends those that take too much.

Every job has a child to itself, and a child serves one job after another. Most are done in a
millisecond of processor time. One that is not has to wait its turn: only a few may go on, at the
lowest priority, so that a hundred greedy jobs do not take the processor from one that is not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import struct
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rose.errors import InvalidParameter, MalformedMessage, PromptTooLong, UnsupportedModel
from rose.protocol import JobSpec
from rose.sampling import Grammar
from rose_worker import preparer

log = logging.getLogger("rose.preparation")

#: Processor time of a prompt, for any and for each MiB of its job.
_PROMPT_S = 1.0
_PROMPT_S_PER_MIB = 8.0
#: Whoever takes more processor time waits for one of the turns of those that do. On a busy machine
#: the answer to a job of a millisecond may come late: a child that were ended for that, and the one
#: after it, would make the machine busier.
_SHORT_S = 0.05
_SHORT_TURNS = 4
_LONG_TURNS = 4
_KNOWN_GRAMMARS = 4096
#: As exactly as a process' time is told.
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
#: A process that neither had processor time for so long nor waits for some stands still for another
#: reason.
_HUNG_S = 60.0
#: Of those that take long, so that a step's threads feel little of four of them. With 19 they would
#: get a hundredth of a processor beside a step, or on a busy machine.
_LONG_NICENESS = 10
#: A child that was killed from outside, as the kernel does for memory, or whose parent was, may
#: have died for others: its job is tried again.
_NOT_ITS_FAULT = (signal.SIGKILL, None)
_ATTEMPTS = 3


class Preparer:
    """The worker's end of the preparer: made before it has threads."""

    def __init__(self) -> None:
        self.pid, self._control = preparer.fork()
        self._described = b""

    def load(self, tokenizer: Any, vocab_size: int, ends: Any) -> dict[str, Any]:
        """Give it the tokenizer. Returns the fields of a `ModelInfo` that say how the model writes
        calls and thoughts.

        Raises UnsupportedModel: tokenizer or template take too much even for a few words.
        """
        self._described = preparer.describe(tokenizer, vocab_size, ends)
        return self._load()

    def load_inputs(self, rules: Mapping[str, Any]) -> None:
        """As `load`, for a model that encodes: the fields of its `InputRules`."""
        self._described = json.dumps({"inputs": rules}).encode()
        self._load()

    def _load(self) -> dict[str, Any]:
        self._control.settimeout(10 * preparer.LOAD_S)
        try:
            preparer.send(self._control, self._described)
            _, answer = preparer.read(self._control)
        except (EOFError, OSError) as error:
            raise UnsupportedModel(
                "the tokenizer or the chat template of this model cannot be used: a few words take "
                f"more than {preparer.LOAD_S:.0f} s of processor time or "
                f"{preparer.LOAD_MEMORY >> 30} GiB of memory, or end its process"
            ) from error
        self._control.setblocking(False)
        found: dict[str, Any] = json.loads(answer)
        return found

    def replace(self) -> None:
        """With another one, which knows the same. Takes seconds. Raises: UnsupportedModel"""
        self.close()
        self.pid, self._control = preparer.spawn()
        self._load()

    async def fork(self, descriptor: int) -> int:
        """A child that serves the socket `descriptor`. Returns its process id.

        Raises: EOFError, OSError: the preparer has died.
        """
        socket.send_fds(self._control, [b"fork"], [descriptor])
        return await self._number()

    async def reap(self, pid: int) -> int:
        """The status with which a child has ended. Raises: EOFError, OSError: it has died."""
        await asyncio.get_running_loop().sock_sendall(self._control, struct.pack("<i", pid))
        return await self._number()

    async def _number(self) -> int:
        return int(struct.unpack("<i", await _exactly(self._control, 4))[0])

    @property
    def alive(self) -> bool:
        """Only until then are the numbers of its children theirs."""
        try:
            if self.pid and os.waitpid(self.pid, os.WNOHANG) != (0, 0):
                self.pid = 0
        except ChildProcessError:  # another thread has seen its end
            self.pid = 0
        return self.pid != 0

    def close(self) -> None:
        self._control.close()
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


class PreparedJob(NamedTuple):
    spec: JobSpec
    left_out: str | None = None
    """why its grammar of calls was left out"""
    inputs: bytes | None = None
    """tokens of a job with `encode`, as its engine reads them"""


def _without_grammar(spec: JobSpec) -> JobSpec:
    """A grammar that only calls must fit is left out where it cannot be compiled, whichever worker
    tries."""
    log.warning("job %s: its calls follow no grammar, which cannot be compiled", spec.id)
    free = spec.sampling.model_copy(
        update={"grammar": None, "grammar_triggers": (), "grammar_once": False}
    )
    return spec.model_copy(update={"sampling": free})


class _Exceeded(InvalidParameter):
    """It takes more than it may, here and now."""


class Preparation:
    def __init__(self, source: Preparer | None) -> None:
        """`source`: None where nothing that a job says costs anything, as for the null engine."""
        self._source = source
        self._control = asyncio.Lock()
        self._idle: list[_Child] = []
        self._turns = asyncio.Semaphore(_SHORT_TURNS)
        self._long_turns = asyncio.Semaphore(_LONG_TURNS)
        self._reaping: set[asyncio.Future[int | None]] = set()
        # By the job's salt too: how long it takes tells nobody what others have sent.
        self._grammars: OrderedDict[tuple[str, Grammar], InvalidParameter | None] = OrderedDict()
        self._tried: dict[tuple[str, Grammar], asyncio.Lock] = {}

    @property
    def needed(self) -> bool:
        return self._source is not None

    @property
    def _preparer(self) -> Preparer:
        if self._source is None:
            raise RuntimeError("nothing is prepared outside this process")
        return self._source

    async def prepare(self, spec: JobSpec, raw: bytes) -> PreparedJob:
        """The job with its prompt as token ids, and with a grammar that may be compiled.

        Raises: InvalidParameter, MalformedMessage: its prompt or its grammar cannot be prepared.
        """
        if self._source is None:
            return PreparedJob(spec)
        if spec.encode is not None:
            given = all(isinstance(one, tuple) for one in spec.inputs)
            inputs = None if given else await self._tokens(raw, "tokenizer takes")
            return PreparedJob(spec, inputs=inputs)
        if not spec.token_ids:
            spec = await self._tokenized(spec, raw)
        if (grammar := spec.sampling.constraint) is not None:
            try:
                await self._try_out(spec.cache_salt, grammar)
            except _Exceeded:
                # Not left out: another worker may have the time, and would write another text.
                raise
            except InvalidParameter as error:
                if not grammar.is_lazy:
                    raise
                return PreparedJob(_without_grammar(spec), str(error))
        return PreparedJob(spec)

    async def _tokens(self, raw: bytes, who: str) -> bytes:
        """Of an encoded job, as a child answers. `who`: of the model works on it."""
        seconds = _PROMPT_S + _PROMPT_S_PER_MIB * len(raw) / 2**20
        return await self._ask(
            preparer.PROMPT,
            preparer.request_of(seconds, raw),
            f"prompt: this model's {who} more than {seconds:.1f} s of processor time or "
            f"{preparer.CHILD_MEMORY >> 20} MiB for it",
            "prompt",
        )

    async def _tokenized(self, spec: JobSpec, raw: bytes) -> JobSpec:
        ids = array("i", await self._tokens(raw, "chat template and tokenizer take"))
        if not ids:
            raise InvalidParameter(
                "the prompt is empty: it must have at least one token", param="prompt"
            )
        changed = {"prompt": tuple(ids), "tools": (), "chat_template_kwargs": {}}
        return spec.model_copy(update=changed)

    async def _try_out(self, salt: str, grammar: Grammar) -> None:
        """Raises: InvalidParameter"""
        key = salt, grammar
        if key not in self._grammars:
            lock = self._tried.setdefault(key, asyncio.Lock())
            async with lock:  # many jobs may have the same one
                if key not in self._grammars:
                    self._remember(key, await self._verdict(grammar))
            self._tried.pop(key, None)
        self._grammars.move_to_end(key)
        if (error := self._grammars[key]) is not None:
            raise type(error)(str(error), param=getattr(error, "param", None))

    async def _verdict(self, grammar: Grammar) -> InvalidParameter | None:
        body = json.dumps(grammar).encode()
        try:
            await self._ask(
                preparer.GRAMMAR,
                preparer.request_of(preparer.GRAMMAR_S, body),
                f"{grammar.kind}: it takes more than {preparer.GRAMMAR_S:.0f} s of processor time "
                f"or {preparer.CHILD_MEMORY >> 20} MiB to compile: make it smaller",
                grammar.kind,
            )
        except InvalidParameter as error:
            return error
        return None

    def _remember(self, key: tuple[str, Grammar], verdict: InvalidParameter | None) -> None:
        self._grammars[key] = verdict
        while len(self._grammars) > _KNOWN_GRAMMARS:
            self._grammars.popitem(last=False)

    async def _ask(self, kind: bytes, request: bytes, exceeded: str, param: str) -> bytes:
        """Raises: InvalidParameter: it is refused, or takes more than it may (`exceeded`)."""
        for _ in range(_ATTEMPTS):
            try:
                answer, payload = await self._answered(kind, request)
            except TimeoutError:
                break
            except _Gone as gone:
                if await gone.child.ended not in _NOT_ITS_FAULT:
                    break
            else:
                if answer == preparer.ERROR:
                    _raise(json.loads(payload))
                return payload
        raise _Exceeded(exceeded, param=param)

    async def _answered(self, kind: bytes, request: bytes) -> tuple[bytes, bytes]:
        async with self._turns:
            child = await self._child()
            asked = asyncio.ensure_future(child.ask(kind, request))
            try:
                await _shortly(child, asked)
            finally:
                if _answers(asked):
                    self._idle.append(child)
                elif asked.done() or asked.cancelled() or self._long_turns.locked():
                    self._end(child, asked)
        if asked.done():
            return asked.result()
        if self._long_turns.locked():  # it has been ended, and begins anew when its turn comes
            async with self._long_turns:
                child = await self._child()
                asked = asyncio.ensure_future(child.ask(kind, request))
                return await self._patiently(child, asked)
        async with self._long_turns:
            return await self._patiently(child, asked)

    async def _patiently(
        self, child: _Child, asked: asyncio.Future[tuple[bytes, bytes]]
    ) -> tuple[bytes, bytes]:
        """The answer of a child that is ended afterwards: its priority cannot be raised again."""
        if self._is_ours(child):
            child.lower_priority()
        try:
            while not (await asyncio.wait([asked], timeout=_HUNG_S))[0]:
                if not self._is_ours(child) or child.stands_still():
                    raise TimeoutError
            return asked.result()
        finally:
            self._end(child, asked)

    async def _child(self) -> _Child:
        while True:
            while self._idle:
                child = self._idle.pop()
                if self._is_ours(child):
                    return child
                child.close()
            await asyncio.shield(self._forked())

    async def _forked(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            async with self._control:
                try:
                    pid = await self._preparer.fork(theirs.fileno())
                except (EOFError, OSError):
                    log.warning("the process that prepares jobs has died: another one is started")
                    await asyncio.to_thread(self._preparer.replace)
                    pid = await self._preparer.fork(theirs.fileno())
                self._idle.append(_Child(pid, self._preparer.pid, ours))

    def _end(self, child: _Child, asked: asyncio.Future[tuple[bytes, bytes]]) -> None:
        if self._is_ours(child):
            child.kill()
        child.ended = asyncio.ensure_future(self._ended(child, asked))
        self._reaping.add(child.ended)
        child.ended.add_done_callback(self._reaping.discard)

    async def _ended(self, child: _Child, asked: asyncio.Future[tuple[bytes, bytes]]) -> int | None:
        """The status with which it has ended, if its parent knows."""
        asked.cancel()
        await asyncio.wait([asked])  # it reads the socket
        if self._is_ours(child):
            await child.gone()
        child.close()
        async with self._control:
            if self._is_ours(child):
                with suppress(EOFError, OSError):  # it dies: whoever asks next replaces it
                    return await self._preparer.reap(child.pid)
        return None

    def _is_ours(self, child: _Child) -> bool:
        """Whether its number is its own. One whose parent has died ends with its socket, or by its
        timer."""
        return self._preparer.alive and self._preparer.pid == child.parent

    def close(self) -> None:
        """Children read the end of their sockets, or are ended. The preparer is its maker's."""
        for child in self._idle:
            child.close()


class _Gone(Exception):
    """A child has died before it answered."""

    def __init__(self, child: _Child) -> None:
        super().__init__(f"the child {child.pid} has died")
        self.child = child


class _Child:
    ended: asyncio.Future[int | None]

    def __init__(self, pid: int, parent: int, connection: socket.socket) -> None:
        self.pid = pid
        """Its own until its parent reaps it, or dies."""
        self.parent = parent
        self._connection = connection
        self.worked_s = 0.0
        """its processor time when it was last asked whether it stands still"""

    async def ask(self, kind: bytes, request: bytes) -> tuple[bytes, bytes]:
        """Raises: _Gone"""
        header = preparer.HEADER
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._connection, header.pack(kind, len(request)) + request)
            answer, length = header.unpack(await _exactly(self._connection, header.size))
            return answer, await _exactly(self._connection, length)
        except (EOFError, ConnectionError):
            raise _Gone(self) from None

    def lower_priority(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.pid, _LONG_NICENESS)

    def stands_still(self) -> bool:
        """Whether it had no processor time since this was last asked, and does not wait for any. On
        a busy machine its low priority may leave it none for minutes."""
        try:
            state, *fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return True  # not on Linux, or it has gone
        before, self.worked_s = self.worked_s, (int(fields[10]) + int(fields[11])) * _TICK_S
        return state != "R" and self.worked_s == before

    async def gone(self) -> None:
        """Wait for the end of one that is killed. The system takes its memory back first, which
        takes a while: whoever reaped it earlier would wait, and could fork no other meanwhile."""
        with suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(self._connection, 1 << 16):
                pass

    def close(self) -> None:
        self._connection.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


async def _exactly(connection: socket.socket, length: int) -> bytes:
    """Raises: EOFError: the other side has gone."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < length:
        part = await loop.sock_recv(connection, min(length - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


async def _shortly(child: _Child, asked: asyncio.Future[tuple[bytes, bytes]]) -> None:
    """Until it is done, or has had the processor time of a short job, or stands still."""
    child.stands_still()
    before, left, still = child.worked_s, _SHORT_S, 0
    while not (await asyncio.wait([asked], timeout=left))[0]:
        # Once may be an answer that has not been read yet.
        still = still + 1 if child.stands_still() else 0
        left = _SHORT_S - (child.worked_s - before)
        if left < _TICK_S or still > 1:
            return


def _answers(asked: asyncio.Future[tuple[bytes, bytes]]) -> bool:
    return asked.done() and not asked.cancelled() and asked.exception() is None


def _raise(reason: dict[str, Any]) -> NoReturn:
    if "type" in reason:
        raise MalformedMessage(f"the prompt cannot be prepared for this model ({reason['type']})")
    kind = PromptTooLong if reason["code"] == PromptTooLong.code else InvalidParameter
    raise kind(reason["message"], param=reason["param"])
