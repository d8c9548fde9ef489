"""The HTTP server of the page: kept connections, a pool that waiting requests do not use up."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lanescope.webapp.runs.types import Progress
from lanescope.webapp.server.http_server import (
    BODY_LIMIT,
    CONNECTIONS,
    FINISH_S,
    ROOM,
    THREADS,
    Preparing,
    Server,
    Wsgi,
)


@contextmanager
def served(
    app: Wsgi, address: str = "127.0.0.1", connections: int = CONNECTIONS
) -> Iterator[http.client.HTTPConnection]:
    """A connection to an application that is being served; the server ends with it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        server = Server(app, listener, connections)
        thread = threading.Thread(target=server.serve)
        thread.start()
        connection = http.client.HTTPConnection(address, listener.getsockname()[1])
        try:
            yield connection
        finally:
            connection.close()
            server.stop()
            thread.join()


def page(environ: dict[str, Any], start: Any) -> list[bytes]:
    body = environ["PATH_INFO"].encode()
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def got(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


def another(connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(connection.host, connection.port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_is_kept(address: str) -> None:
    with served(page, address) as connection:
        assert got(connection, "/1") == b"/1"
        first = connection.sock
        for turn in range(50):
            assert got(connection, f"/{turn}") == f"/{turn}".encode()
        assert connection.sock is first
        connection.putrequest("POST", "/")
        connection.putheader("Content-Length", str(BODY_LIMIT + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_large_answers_arrive_whole_and_a_client_may_leave() -> None:
    piece = bytes(range(256)) * 4096
    left = threading.Event()

    def download(environ: dict[str, Any], start: Any) -> Iterator[bytes]:
        start("200 OK", [])
        try:
            for _ in range(40):
                yield piece
        finally:
            left.set()

    with served(download) as connection:
        assert got(connection, "/") == piece * 40
        left.clear()
        leaving = another(connection)
        leaving.request("GET", "/")
        leaving.getresponse().read(10)
        leaving.close()
        assert left.wait(20)
        assert len(got(connection, "/")) == 40 * len(piece)


def test_requests_waiting_for_an_index_leave_threads_for_its_progress() -> None:
    go_on = threading.Event()

    def make(progress: Progress) -> Wsgi:
        progress(1, 4)
        go_on.wait()
        return page

    app = Preparing(make)
    app.start(failed=lambda: None)
    with served(app) as connection:
        answers: list[http.client.HTTPResponse] = []
        asking = [another(connection) for _ in range(THREADS * 2)]
        for one in asking:
            one.request("GET", "/api/run")
        refused = threading.Event()

        def receive(one: http.client.HTTPConnection) -> None:
            answers.append(one.getresponse())
            refused.set()

        receiving = [threading.Thread(target=receive, args=(one,)) for one in asking]
        for thread in receiving:
            thread.start()
        assert refused.wait(20)
        assert json.loads(got(connection, "/api/progress")) == {"done": 1, "of": 4, "ready": False}
        go_on.set()
        for thread in receiving:
            thread.join()
        assert {answer.status for answer in answers} == {200, 503}
        for one in asking:
            one.close()


@pytest.mark.parametrize(("finish_s", "takes_s"), [(FINISH_S, 0.0), (60.0, FINISH_S + 0.5)])
def test_stopping_lets_running_answers_end(
    capfd: pytest.CaptureFixture[str], finish_s: float, takes_s: float
) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start: Any) -> list[bytes]:
        begun.set()
        end.wait()
        return page(environ, start)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(slow, listener, finish_s=finish_s)
        thread = threading.Thread(target=server.serve)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1])
        connection.request("GET", "/slow")
        assert begun.wait(20)
        server.stop()
        end_of_answer = threading.Timer(takes_s, end.set)
        end_of_answer.start()
        assert connection.getresponse().read() == b"/slow"
        thread.join()
        connection.close()
    assert capfd.readouterr() == ("", "")


def test_connections_that_send_nothing_do_not_lock_out_the_next() -> None:
    many = ROOM + 20
    started, go_on = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/slow":
            started.set()
            go_on.wait()
        return page(environ, start)

    with served(slow, connections=many) as connection:
        at_work = another(connection)
        at_work.request("GET", "/slow")
        assert started.wait(20)
        place = (connection.host, connection.port)
        silent = [socket.create_connection(place, timeout=20) for _ in range(3 * many)]
        for one in silent[::2]:
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: ")
        assert got(connection, "/next") == b"/next"
        assert silent[0].recv(1) == silent[1].recv(1) == b""  # closed, as the most silent
        go_on.set()
        assert at_work.getresponse().read() == b"/slow"
        for one in (*silent, at_work):
            one.close()
