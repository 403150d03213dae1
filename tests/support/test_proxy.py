"""The proxy's faults, each on a connection to a server that answers `echo:` and what it got."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock

import pytest

from rose_cli.local.broker import free_port
from tests.support import proxy as proxy_module
from tests.support.bench import wait_until
from tests.support.proxy import Cut, CutMode, Proxy

_QUESTION = b"*1\r\n$10\r\n0123456789\r\n"


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True
    heard = b""


class _Connection(socketserver.BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        with suppress(ConnectionError):  # this is how a cut looks to the server
            while data := self.request.recv(1000):
                self.server.heard += data
                self.request.sendall(b"echo:" + data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo(("127.0.0.1", 0), _Connection) as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        yield echo
        echo.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.server_address[1]) as proxy:
        yield proxy


@contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=90) as connection:
        yield connection


@contextmanager
def in_use(proxy: Proxy, echo: Echo) -> Iterator[socket.socket]:
    with connected(proxy) as connection:
        connection.sendall(_QUESTION)
        assert read(connection, len(_QUESTION) + 5) == b"echo:" + _QUESTION
        echo.heard = b""
        yield connection


def read(connection: socket.socket, size: int = 1000) -> bytes:
    """So many bytes, or fewer where the connection ends before."""
    got = b""
    try:
        while len(got) < size and (data := connection.recv(1000)):
            got += data
    except ConnectionError:
        pass  # a reset: what came before it counts
    return got


def modes(proxy: Proxy) -> list[CutMode]:
    return [mode for _, mode in proxy.cut_log]


def arm(proxy: Proxy, cut: Cut) -> None:
    """Returns when the next traffic meets the cut, which waits for it as long as it takes."""
    with mock.patch.object(proxy_module, "_IDLE_S", 300.0):
        proxy.cut(cut)
        wait_until(lambda: any(link.armed for link in proxy._links))


@pytest.mark.parametrize(
    ("mode", "arrives", "heard"),
    [
        ("reply", (b"echo:" + _QUESTION)[:13], _QUESTION),  # the request was carried out
        ("request", b"", _QUESTION[:10]),
    ],
)
def test_a_cut_in_the_middle(
    proxy: Proxy, echo: Echo, mode: CutMode, arrives: bytes, heard: bytes
) -> None:
    with in_use(proxy, echo) as connection:
        # when
        arm(proxy, Cut(mode))
        connection.sendall(_QUESTION)
        # then: an abort may take back what had been let through
        assert arrives.startswith(read(connection))
        wait_until(lambda: echo.heard == heard)
        assert modes(proxy) == [mode]
    # and the next connection is whole
    with in_use(proxy, echo):
        pass


def test_a_muted_connection_loses_replies_and_then_breaks(proxy: Proxy, echo: Echo) -> None:
    with in_use(proxy, echo) as connection:
        # when
        arm(proxy, Cut("mute", for_s=1.0))
        connection.sendall(_QUESTION)
        # then
        assert read(connection) == b""
    assert echo.heard == _QUESTION
    assert modes(proxy) == ["mute"]


def test_what_a_muted_connection_has_lost_is_followed_by_nothing(proxy: Proxy, echo: Echo) -> None:
    # given
    with in_use(proxy, echo) as connection:
        arm(proxy, Cut("mute", for_s=1.0))
        connection.sendall(_QUESTION)
        wait_until(lambda: echo.heard == _QUESTION)
        # when: another cut strikes while replies vanish
        proxy.cut(Cut("idle")).result(90)
        # then
        assert read(connection, 1) == b""
    assert modes(proxy) == ["mute"]


def test_an_idle_connection_is_cut_all_the_same(proxy: Proxy, echo: Echo) -> None:
    with in_use(proxy, echo) as connection:
        # when
        proxy.cut(Cut(reset=True))
        # then
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert modes(proxy) == ["idle"]


def test_a_slow_line_is_late_and_complete(proxy: Proxy, echo: Echo) -> None:
    with in_use(proxy, echo) as connection:
        # given
        proxy.delay_s = proxy.request_delay_s = 0.1
        began = time.monotonic()
        # when
        connection.sendall(_QUESTION)
        # then
        assert read(connection, len(_QUESTION) + 5) == b"echo:" + _QUESTION
        assert time.monotonic() - began >= 0.2
    assert modes(proxy) == []


def test_each_command_gets_the_answer_and_none_reaches_redis(proxy: Proxy, echo: Echo) -> None:
    with in_use(proxy, echo) as connection:
        # given
        proxy.answer = b"LOADING"
        # when: three commands, the last in two parts
        connection.sendall(_QUESTION * 2 + _QUESTION[:7])
        connection.sendall(_QUESTION[7:])
        # then
        answers = b"-LOADING\r\n" * 3
        assert read(connection, len(answers)) == answers
    assert echo.heard == b""


def test_without_redis_there_is_no_connection() -> None:
    with Proxy(free_port()) as proxy, connected(proxy) as connection:
        assert read(connection) == b""


def test_what_was_said_in_silence_arrives_late(proxy: Proxy, echo: Echo) -> None:
    with in_use(proxy, echo) as connection:
        # given: a silence, and a client that connects all the same
        proxy.silence()
        with connected(proxy) as other:
            # when
            for end in (connection, other):
                end.sendall(_QUESTION)
                end.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    end.recv(1)
            heard_meanwhile = echo.heard
            proxy.speak()
            # then
            for end in (connection, other):
                end.settimeout(90)
                assert read(end, len(_QUESTION) + 5) == b"echo:" + _QUESTION
    assert heard_meanwhile == b""
    assert proxy.peak == 1  # those of a silence do not count
    assert modes(proxy) == []


def test_a_silence_may_end_with_all_of_it_lost(proxy: Proxy, echo: Echo) -> None:
    with in_use(proxy, echo) as connection:
        # given
        proxy.silence()
        connection.sendall(_QUESTION)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        # when
        proxy.speak(lost=True)
        # then
        connection.settimeout(90)
        assert read(connection) == b""
    assert modes(proxy) == ["silence"]
    assert echo.heard == b""


def test_the_replies_to_some_commands_in_a_row_are_lost(proxy: Proxy, echo: Echo) -> None:
    # given
    proxy.swallow, proxy.swallow_times = b"0123456789", 2
    answers = []
    # when
    for _ in range(3):
        with connected(proxy) as connection:
            connection.sendall(_QUESTION)
            answers.append(read(connection, len(_QUESTION) + 5))
    # then
    assert answers == [b"", b"", b"echo:" + _QUESTION]
    assert echo.heard == _QUESTION * 3
