"""One write at a time through Airflow's API server where its database is SQLite.

Airflow writes its audit log on the event loop (``action_logging`` commits in a dependency), and a request's
own session commits only when the loop comes back to it. SQLite has one lock for all writers. So two requests
that write at once can wait for each other: one holds the lock and waits for the loop, the other holds the
loop and waits for the lock. Nothing is answered then until SQLite gives up, a minute later in the demo.
"""

from __future__ import annotations

import asyncio
from typing import Any

READS = frozenset({"GET", "HEAD", "OPTIONS"})
PATIENCE_SECONDS = 30.0
"""How long a request waits for the one before, whose client may send its body slowly."""


class OneWriteAtATime:
    """ASGI middleware: a request that may write begins when the one before has ended, its commit included.

    EMEP's own routes are left alone: they poll for long, and a thread begins and ends each transaction.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, in its turn."""
        if not _may_write(scope):
            await self._app(scope, receive, send)
            return
        has_turn = True
        try:
            await asyncio.wait_for(self._turn.acquire(), PATIENCE_SECONDS)
        except TimeoutError:
            has_turn = False
        try:
            await self._app(scope, receive, send)
        finally:
            if has_turn:
                self._turn.release()


def _may_write(scope: Any) -> bool:
    if scope["type"] != "http" or scope["method"] in READS:
        return False
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return not path.startswith("/emep/")


def middlewares() -> list[dict[str, Any]]:
    """The middleware as an Airflow plugin names it; none where the database is no SQLite file."""
    from airflow.configuration import conf

    if not conf.get("database", "sql_alchemy_conn", fallback="").startswith("sqlite"):
        return []
    return [{"name": "EMEP: one write at a time", "middleware": OneWriteAtATime, "args": [], "kwargs": {}}]
