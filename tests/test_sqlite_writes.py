"""An API server on SQLite does not wait for itself when two requests write at once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from emep.airflow import sqlite_writes
from emep.airflow.sqlite_writes import OneWriteAtATime, middlewares


class TwoWriters:
    """An application of two requests as Airflow's are, on a real database.

    ``/api/first`` writes in a thread and commits when the loop comes back to it; every other request commits
    its audit record on the loop.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.first_has_written = asyncio.Event()
        self.audited: list[str] = []
        with self._connect() as connection:
            connection.execute("CREATE TABLE log (path TEXT)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=0.5, check_same_thread=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection = self._connect()
        insert = "INSERT INTO log VALUES (?)"
        if scope["path"] == "/api/first":
            await asyncio.to_thread(connection.execute, insert, (scope["path"],))
            self.first_has_written.set()
            await asyncio.sleep(0)  # the other request gets the loop here
            await asyncio.to_thread(connection.commit)
        else:
            connection.execute(insert, (scope["path"],))
            connection.commit()
            self.audited.append(scope["path"])
        connection.close()


def request(path: str, method: str = "POST") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "root_path": ""}


async def both(app: Any, writers: TwoWriters, second: dict[str, Any]) -> None:
    first = asyncio.create_task(app(request("/api/first"), None, None))
    await writers.first_has_written.wait()
    await app(second, None, None)
    await first


def test_without_it_the_second_write_holds_the_loop_that_the_first_needs(tmp_path):
    writers = TwoWriters(tmp_path / "a.db")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        asyncio.run(both(writers, writers, request("/api/second")))


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
def test_a_write_waits_for_the_commit_of_the_one_before(tmp_path, method):
    writers = TwoWriters(tmp_path / "a.db")
    asyncio.run(both(OneWriteAtATime(writers), writers, request("/api/second", method)))
    assert writers.audited == ["/api/second"]


class Stuck:
    """An application whose writes never end, and which notes who was let in."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.two_are_in = asyncio.Event()
        self.end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered.append(scope["path"])
        if len(self.entered) == 2:
            self.two_are_in.set()
        await self.end.wait()


@pytest.mark.parametrize(
    ("scope", "is_let_in"),
    [
        (request("/api/second"), False),
        (request("/api/second", "GET"), True),
        (request("/emep/api/v1/nodes/n0/poll"), True),
        ({**request("/airflow/emep/api/v1/jobs"), "root_path": "/airflow"}, True),
        ({"type": "websocket", "path": "/ws"}, True),
    ],
)
def test_only_what_writes_through_airflow_s_sessions_waits(scope, is_let_in):
    async def look() -> None:
        app = Stuck()
        guarded = OneWriteAtATime(app)
        tasks = [asyncio.create_task(guarded(one, None, None)) for one in (request("/api/first"), scope)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert (scope["path"] in app.entered) is is_let_in
        app.end.set()
        await asyncio.gather(*tasks)

    asyncio.run(look())


def test_a_request_that_never_ends_does_not_keep_the_others_out(monkeypatch):
    monkeypatch.setattr(sqlite_writes, "PATIENCE_SECONDS", 0.05)

    async def look() -> None:
        app = Stuck()
        guarded = OneWriteAtATime(app)
        tasks = [asyncio.create_task(guarded(request(f"/api/{n}"), None, None)) for n in range(2)]
        await app.two_are_in.wait()
        app.end.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(look(), 20))


@pytest.mark.parametrize(
    ("url", "count"), [("sqlite:////tmp/a.db", 1), ("postgresql+psycopg://emep@localhost/emep", 0)]
)
def test_only_a_server_on_sqlite_has_it(monkeypatch, url, count):
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", url)
    assert len(middlewares()) == count
