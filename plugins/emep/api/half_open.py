"""Closes connections on which no request comes: half-open ones, and headers that drip.

uvicorn, which serves Airflow's API, waits for ever for the first byte and for the rest of a header, and
neither it nor Airflow has an option for that. A connection that is never used costs a file descriptor:
thousands of them stop the server. While EMEP's app runs, uvicorn's protocols get a timer for it. What a body
may take is in ``emep.api.bodies``; between two requests uvicorn's own ``timeout_keep_alive`` counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger(__name__)
HEADER_SECONDS = 20.0
"""From the connection, or from a request's first byte, to the end of its headers."""
_TIMER = "_emep_header_timer"
_MODULES = ("httptools_impl", "h11_impl")
_CLASSES = ("HttpToolsProtocol", "H11Protocol")


@contextlib.contextmanager
def end_half_open(seconds: float | None = None) -> Iterator[None]:
    """While the block lasts, close connections whose headers do not come within ``seconds``."""
    limit = HEADER_SECONDS if seconds is None else seconds
    undo: list[Callable[[], None]] = []
    for protocol in _protocols():
        undo.append(_watch(protocol, limit))
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _protocols() -> Iterator[Any]:
    for module, name in zip(_MODULES, _CLASSES, strict=True):
        try:
            found = getattr(__import__(f"uvicorn.protocols.http.{module}", fromlist=[name]), name)
        except ImportError:
            continue  # the one that is not installed is not used either
        if all(hasattr(found, method) for method in ("connection_made", "data_received", "connection_lost")):
            yield found
        else:
            log.warning("connections without a request are not closed: this uvicorn is not known")


def _watch(protocol: Any, seconds: float) -> Callable[[], None]:
    """Give the class its timers; returns the function that removes them."""
    made, received, lost = protocol.connection_made, protocol.data_received, protocol.connection_lost

    def connection_made(self: Any, transport: Any) -> None:
        made(self, transport)
        _start(self, seconds)

    def data_received(self: Any, data: bytes) -> None:
        received(self, data)
        if _has_request(self):
            _stop(self)
        elif getattr(self, _TIMER, None) is None and not self.transport.is_closing():
            _start(self, seconds)

    def connection_lost(self: Any, error: Exception | None) -> None:
        _stop(self)
        lost(self, error)

    protocol.connection_made = connection_made
    protocol.data_received = data_received
    protocol.connection_lost = connection_lost

    def restore() -> None:
        protocol.connection_made, protocol.data_received, protocol.connection_lost = made, received, lost

    return restore


def _has_request(connection: Any) -> bool:
    """Whether all headers of a request have arrived and it is not answered yet."""
    cycle = getattr(connection, "cycle", None)
    return cycle is not None and not cycle.response_complete


def _start(connection: Any, seconds: float) -> None:
    def close() -> None:
        setattr(connection, _TIMER, None)
        transport = connection.transport
        # A connection that became a websocket is another protocol's by now.
        if not _has_request(connection) and transport.get_protocol() is connection:
            transport.close()

    setattr(connection, _TIMER, asyncio.get_running_loop().call_later(seconds, close))


def _stop(connection: Any) -> None:
    timer: asyncio.TimerHandle | None = getattr(connection, _TIMER, None)
    if timer is not None:
        timer.cancel()
        setattr(connection, _TIMER, None)
