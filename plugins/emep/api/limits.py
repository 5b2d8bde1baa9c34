"""Refuses bodies that are larger than any honest request, before they are in memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emep.api.problems import problem

MAX_BODY_BYTES = 8 * 1024**2


class BodyTooLargeError(Exception):
    """More bytes came than are allowed."""


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
        refusal = problem(
            413, "Too large", f"a request may have {self.limit} bytes; send less at once", code="too_large"
        )
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self.limit:
            await refusal(scope, receive, send)
            return
        received = 0
        is_answered = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise BodyTooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except BodyTooLargeError:
            if not is_answered:
                await refusal(scope, receive, send)
