"""Reading a request's body: bounded in bytes, in time, in depth and in the number of values.

A large body is parsed in a thread, a few at a time, so that the loop which serves all callers goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn, TypeVar

import anyio
from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from emep.wire.base import STORABLE_IS_CHECKED, check_storable
from emep.wire.errors import InvalidError, TooLargeError

DEFAULT_BYTES = 1024**2
BYTES_A_VALUE = 16
"""Fewest bytes for each value, on average, in an honest body; denser ones cost more than their size tells."""
ON_THE_LOOP = 16 * 1024
"""Bodies up to this size are parsed at once; a thread would cost more."""
SILENCE = 10.0
"""Seconds without a byte after which a body is given up."""
PATIENCE, SLOWEST = 30.0, 32 * 1024
"""Seconds that every body has, and the bytes a second that a long one must come with."""
DRAIN_BYTES, DRAIN_SECONDS = 64 * 1024, 0.05
UNREAD = "emep.unread"
"""In the scope: some of the body has not come, so the connection cannot serve another request."""
_threads: MutableMapping[int, anyio.CapacityLimiter] = {}
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def body_limit(size: int) -> Callable[[_Endpoint], _Endpoint]:
    """Let a route's body have so many bytes, instead of ``DEFAULT_BYTES``."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        endpoint.body_bytes = size  # type: ignore[attr-defined]
        return endpoint

    return mark


def body_bytes(endpoint: Callable[..., Any]) -> int:
    """Bytes that a body of this route may have."""
    return int(getattr(endpoint, "body_bytes", DEFAULT_BYTES))


class BoundedRequest(Request):
    """A request whose body is refused where it is too large (413) or comes too slowly (408).

    ``is_document``: the body is one of the API's own documents, which check that their values can be stored;
    for a large one that is done in the thread which parses it.
    """

    def __init__(self, scope: Any, receive: Receive, *, limit: int, is_document: bool) -> None:
        super().__init__(scope, self._bounded)
        self._from_server = receive
        self._limit, self._is_document = limit, is_document
        self._begun = time.monotonic()
        self._received = 0
        self.is_complete = not _has_body(scope)

    async def _bounded(self) -> Message:
        if self._received == 0:
            self._check_declared()
        left = PATIENCE + self._received / SLOWEST - (time.monotonic() - self._begun)
        try:
            async with asyncio.timeout(max(0.0, min(SILENCE, left))):
                message = await self._from_server()
        except TimeoutError:
            raise HTTPException(
                408, f"the body came too slowly: {self._received} bytes in {PATIENCE:g} s; send it again"
            ) from None
        if message["type"] != "http.request":
            self.is_complete = True
            return message
        self._received += len(message.get("body", b""))
        self.is_complete = not message.get("more_body", False)
        if self._received > self._limit:
            raise self._too_large()
        return message

    def _check_declared(self) -> None:
        declared = self.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit:
            raise self._too_large()

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"body: a request of this route may have {self._limit:,} bytes; send less at once"
        )

    async def take(self) -> None:
        """Read the body, and parse it where it says that it is JSON.

        Raises TooLargeError, InvalidError for what is no JSON or costs more than it says, HTTPException (408)
        for what comes too slowly, ClientDisconnect for what does not come to its end.
        """
        body = await self.body()
        if not body or not self._is_json():
            return
        if len(body) <= ON_THE_LOOP:
            self._json = parse(body, self._limit // BYTES_A_VALUE)
        else:
            self._json = await anyio.to_thread.run_sync(self._parse_large, body, limiter=_few())
            STORABLE_IS_CHECKED.set(self._is_document)

    def _is_json(self) -> bool:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind.startswith("application/") and (kind == "application/json" or kind.endswith("+json"))

    def _parse_large(self, body: bytes) -> Any:
        document = parse(body, self._limit // BYTES_A_VALUE)
        if self._is_document:
            try:
                check_storable(document)
            except ValueError as error:
                raise InvalidError(f"body: {error}", field="body") from None
        return document

    async def drain(self) -> None:
        """Read what has arrived of a body that is not needed, if it is short."""
        until, taken = time.monotonic() + DRAIN_SECONDS, 0
        while not self.is_complete and taken <= DRAIN_BYTES:
            message = await asyncio.wait_for(self._from_server(), max(0.0, until - time.monotonic()))
            taken += len(message.get("body", b""))
            self.is_complete = message["type"] != "http.request" or not message.get("more_body", False)


async def settle(request: BoundedRequest) -> None:
    """Mark the connection, once the answer is known, if the rest of the body may still be under way."""
    if request.is_complete:
        return
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        await request.drain()
    if not request.is_complete:
        request.scope[UNREAD] = True


def parse(body: bytes, most_values: int) -> Any:
    """JSON with at most so many values, none of which is NaN or infinite; InvalidError for anything else."""
    # Counted where it costs nothing: each value but the first of its list or mapping follows a comma.
    values = body.count(b",") + body.count(b"[") + body.count(b"{")
    if values > max(1000, most_values):
        raise InvalidError(
            f"body: has more than {max(1000, most_values):,} values; send less at once", field="body"
        )
    try:
        return json.loads(body, parse_constant=_no_number)
    except RecursionError:
        raise InvalidError("body: is nested too deep; send a flatter document", field="body") from None
    except UnicodeDecodeError:
        raise InvalidError("body: is no UTF-8 text; send JSON in UTF-8", field="body") from None
    except json.JSONDecodeError as error:
        raise InvalidError(f"body: is no valid JSON: {error}", field="body") from None
    except ValueError:
        # Python makes no integer of so many digits: the time it takes grows with their square.
        most = sys.get_int_max_str_digits()
        raise InvalidError(
            f"body: has an integer of more than {most:,} digits; send numbers of at most 64 bits",
            field="body",
        ) from None


def _no_number(name: str) -> NoReturn:
    raise InvalidError(f"body: {name} is no number in JSON; send a finite one", field="body")


def _has_body(scope: Any) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _few() -> anyio.CapacityLimiter:
    """At most two large bodies are parsed at a time; a limiter belongs to its loop."""
    loop = id(asyncio.get_running_loop())
    if loop not in _threads:
        _threads.clear()
        _threads[loop] = anyio.CapacityLimiter(2)
    return _threads[loop]
