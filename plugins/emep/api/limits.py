"""Refuses bodies that are larger than any honest request, before they are in memory."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emep.api.problems import problem

MAX_BODY_BYTES = 8 * 1024**2


class BodyLimit:
    """ASGI middleware: 413 past ``limit`` bytes, declared or not."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what is received."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sentence = f"a request may have {self.limit} bytes; send less at once"
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self.limit:
            refusal = problem(413, "Too large", sentence, code="too_large")
            await refusal(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                # Raised where the body is read, so it is answered as every other refusal is.
                raise HTTPException(413, sentence)
            return message

        await self.app(scope, counted, send)
