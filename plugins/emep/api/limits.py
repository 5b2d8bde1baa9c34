"""Ends a connection whose request was answered before all of its body had come."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emep.api.bodies import UNREAD


class EndUnread:
    """ASGI middleware: ``Connection: close`` where the rest of a body may still be under way.

    A client that is refused could otherwise hold the connection by sending that rest as slowly as it likes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the answer."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and scope.get(UNREAD):
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, closing)
