"""Load on a real API server: calls at a steady rate, and when the ledger had decided about each job."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil
from sqlalchemy import Engine, bindparam, select

from emep.ledger.store.tables import Clock, Event

LOOK_SECONDS = 0.004
"""How often the watch looks for decisions: the resolution of what it measures."""


def quantile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of all are at or below; nan of nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Watch:
    """Sees, from outside the server, when the decision about each job is committed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.decided: dict[str, float] = {}
        """Job -> seconds since 1970 at which a grant or a reason to wait was first seen."""
        self._stopping = threading.Event()
        with engine.connect() as connection:
            self._seen = connection.scalar(select(Clock.seq)) or 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # One statement a look and no transaction around it: watching is to cost the watched little.
        news = select(Event.id, Event.job_id, Event.event).where(Event.id > bindparam("seen"))
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._stopping.wait(LOOK_SECONDS):
                rows = connection.execute(news.order_by(Event.id), {"seen": self._seen}).all()
                now = time.time()
                for number, job_id, event in rows:
                    self._seen = number
                    if event in ("granted", "waiting"):
                        self.decided.setdefault(job_id, now)

    def wait_for(self, jobs: Collection[str], patience: float) -> None:
        """Wait until all of them are decided, or for so many seconds."""
        deadline = time.time() + patience
        while not set(jobs) <= self.decided.keys() and time.time() < deadline:
            time.sleep(0.05)

    def stop(self) -> None:
        """End watching."""
        self._stopping.set()
        self._thread.join()


@dataclass
class Cpu:
    """CPU seconds of the API server and of its database's processes, from here on."""

    pid: int
    database: str = ""
    """Name of a PostgreSQL database on this machine; empty: it is in the server's own process."""
    _before: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float]:
        server = psutil.Process(self.pid).cpu_times()
        backends = 0.0
        if self.database:
            for process in psutil.process_iter(["cmdline"]):
                words = " ".join(process.info["cmdline"] or ())
                if words.startswith("postgres:") and f" {self.database} " in words:
                    times = process.cpu_times()
                    backends += times.user + times.system
        return server.user + server.system, backends

    def used(self) -> tuple[float, float]:
        """(server, database) since the beginning."""
        now = self._now()
        return now[0] - self._before[0], now[1] - self._before[1]


class Calls:
    """A client of the API, with Airflow's token for ``admin`` or whatever each call brings."""

    def __init__(self, url: str, connections: int = 64) -> None:
        self._url = f"{url}/emep/api/v1"
        self._auth = f"{url}/auth/token"
        self._connections = connections
        self.token = ""

    async def __aenter__(self) -> Calls:
        connector = aiohttp.TCPConnector(limit=self._connections)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def log_in(self, name: str, password: str) -> None:
        """Get a token of Airflow's."""
        async with self._session.post(self._auth, json={"username": name, "password": password}) as answer:
            self.token = (await answer.json())["access_token"]

    async def post(self, path: str, body: object, token: str = "") -> Any:
        """One call; RuntimeError with the answer where it is refused."""
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        async with self._session.post(self._url + path, data=json.dumps(body), headers=headers) as answer:
            if answer.status >= 300:
                raise RuntimeError(f"{answer.status}: {(await answer.text())[:300]}")
            return await answer.json()


async def at_rate(per_second: float, seconds: float, call: Callable[[int], Awaitable[None]]) -> float:
    """Start ``call(number)`` at a steady rate, whether the last ones have answered or not; seconds in all."""
    begin, tasks = time.perf_counter(), []
    for number in range(int(per_second * seconds)):
        wait = begin + number / per_second - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(call(number)))
    await asyncio.gather(*tasks)
    return time.perf_counter() - begin
