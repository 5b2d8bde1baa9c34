"""Connections on which no request comes are closed; those that work are not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from fastapi import FastAPI

from emep.api.half_open import end_half_open

SECONDS = 0.3
WHOLE = b"GET /answer HTTP/1.1\r\nHost: here\r\n\r\n"


@contextmanager
def serving(http: str) -> Iterator[tuple[int, threading.Event]]:
    """A server with both protocols of uvicorn's; its slow route answers when the event is set."""
    app, go = FastAPI(), threading.Event()

    @app.get("/answer")
    async def answer() -> str:
        return "yes"

    @app.get("/slow")
    def slow() -> str:
        return str(go.wait(60))

    with end_half_open(SECONDS), socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, http=http, log_level="warning"))  # type: ignore[arg-type]
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
        try:
            yield listening.getsockname()[1], go
        finally:
            go.set()
            server.should_exit = True
            thread.join(60)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def is_closed(connection: socket.socket) -> bool:
    """Waits for the server's last word."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("sent", [b"", b"GET /ans", b"GET /answer HTTP/1.1\r\nHost: here\r\nX-A: "])
def test_a_request_that_does_not_come_ends_the_connection(http: str, sent: bytes) -> None:
    with serving(http) as (port, _), connect(port) as connection:
        connection.sendall(sent)
        assert is_closed(connection)


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_headers_that_drip_end_the_connection(http: str) -> None:
    ended = threading.Event()
    with serving(http) as (port, _), connect(port) as connection:
        connection.sendall(b"GET /answer HTTP/1.1\r\n")

        def drip() -> None:
            while not ended.wait(0.05):
                try:
                    connection.sendall(b"X-More: 1\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert is_closed(connection)
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_the_second_request_of_a_connection_must_come_too(http: str) -> None:
    with serving(http) as (port, _), connect(port) as connection:
        connection.sendall(WHOLE)
        assert b"200 OK" in connection.recv(1000)
        connection.sendall(WHOLE[:10])
        while not is_closed(connection):
            pass


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_a_request_that_takes_long_is_answered(http: str) -> None:
    with serving(http) as (port, go), connect(port) as connection, connect(port) as other:
        connection.sendall(WHOLE.replace(b"answer", b"slow"))
        assert is_closed(other), "the time that a header has is over"
        go.set()
        assert b"200 OK" in connection.recv(1000)


def test_afterwards_the_server_s_classes_are_as_they_were() -> None:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    before = HttpToolsProtocol.connection_made
    with end_half_open():
        assert HttpToolsProtocol.connection_made is not before
    assert HttpToolsProtocol.connection_made is before
