"""Figures of the control plane: ``python -m tests.benchmarks.ledger.measure [NAME ..]``.

Each runs on SQLite, and on PostgreSQL where ``EMEP_TEST_POSTGRES_URL`` names a database that may be emptied.
Every figure stands beside its limit, with CPU seconds beside the clock's: on a busy machine only those compare.
Nothing is asserted here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from sqlalchemy import Engine, make_url
from tests.benchmarks.command import run_measures
from tests.benchmarks.ledger.load import Calls, Cpu, Watch, at_rate, quantile
from tests.benchmarks.ledger.seed import SECRET, make_engine, seed
from tests.builders.emep_server import USERS, EmepServer
from tests.builders.ledger import make_settings

from emep.ledger.database import Database
from emep.ledger.ids import lease_token
from emep.ledger.planner import Planner
from emep.ledger.service import LedgerService
from emep.policy import default_policy

POSTGRES_URL = os.environ.get("EMEP_TEST_POSTGRES_URL", "")
SECONDS = float(os.environ.get("EMEP_BENCH_SECONDS", "20"))
"""How long each load lasts."""
POLICY = "health: {report_every: 1h}"
"""The seeded nodes have no agents, and are to stay alive without."""


def say(kind: str, name: str, value: float, unit: str, limit: float | None = None, note: str = "") -> None:
    """One line: the figure, and what part of its limit it is."""
    share = "" if limit is None else f"{value / limit:7.1%} of {limit:g} {unit}"
    print(f"{kind:10} {name:46} {value:9.3f} {unit:4} {share:24} {note}".rstrip(), flush=True)


def databases() -> list[str]:
    """SQLite, and PostgreSQL where there is one."""
    return ["sqlite", *(["postgresql"] if POSTGRES_URL else [])]


@contextmanager
def loaded(kind: str, nodes: int, pending: int, **load: float) -> Iterator[tuple[Engine, str, list[str], Path]]:
    """A seeded database: engine, URL, allocations that run, and a folder for the server."""
    with tempfile.TemporaryDirectory(prefix="emep-bench-") as name:
        url = f"sqlite:///{name}/emep.db" if kind == "sqlite" else POSTGRES_URL
        engine = make_engine(url)
        running = seed(engine, nodes, pending, **load)  # type: ignore[arg-type]
        try:
            yield engine, url, running, Path(name)
        finally:
            engine.dispose()


@contextmanager
def served(kind: str, nodes: int, pending: int, **load: float) -> Iterator[tuple[Engine, EmepServer, Cpu, list[str]]]:
    """A seeded database with the API server's process on it."""
    with loaded(kind, nodes, pending, **load) as (engine, url, running, folder):
        server = EmepServer(folder, None if kind == "sqlite" else url, POLICY).start()
        try:
            yield engine, server, Cpu(server.pid, _database_name(kind)), running
        finally:
            server.stop()


def _database_name(kind: str) -> str:
    return "" if kind == "sqlite" else make_url(POSTGRES_URL).database or ""


# ---- a whole cycle -----------------------------------------------------------------------------------------


def cycle() -> None:
    """Load, plan and commit with 10,000 pending on 4,096 nodes: the first cycle, and one with 50 new jobs."""
    for kind in databases():
        with loaded(kind, 4096, 10_000) as (engine, _, _, _):
            policy = default_policy()
            ledger = LedgerService(Database(engine), lambda: policy, make_settings())  # noqa: B023
            ledger.database.prepare()
            planner = Planner(ledger, "bench")
            cpu = Cpu(os.getpid(), _database_name(kind))
            for name in ("first", "second", "third"):
                begin, before = time.perf_counter(), cpu.used()
                done = planner.cycle()
                assert done is not None
                wall, after = time.perf_counter() - begin, cpu.used()
                note = f"cpu {after[0] - before[0]:.2f} + database {after[1] - before[1]:.2f} s, "
                note += f"{len(done.plan.starts)} started, {len(done.seen.snapshot.pending)} pending"
                say(kind, f"whole cycle, {name}", wall, "s", 3.0, note)


# ---- submit to decision ------------------------------------------------------------------------------------


def decisions() -> None:
    """Submit to decision at 50 single submits a second with 2,000 jobs pending on a full cluster."""
    for kind in databases():
        _submit(kind, 50.0, "decision", 2000)


def sustained() -> None:
    """150 single submits a second."""
    for kind in databases():
        _submit(kind, 150.0, "sustained", 2000)


def _submit(kind: str, rate: float, what: str, pending: int) -> None:
    with served(kind, 64, pending, busy=1.0, projects=40) as (engine, server, cpu, _):
        watch = Watch(engine)
        sent: dict[str, float] = {}
        answered: list[float] = []

        async def work() -> float:
            async with Calls(server.url) as calls:
                await calls.log_in("admin", USERS["admin"])

                async def call(number: int) -> None:
                    begin = time.time()
                    body = {
                        "project": f"p{number % 40:03d}",
                        "user": f"u{number % 5}",
                        "gpu_count": (1, 1, 2, 4, 8)[number % 5],
                        "max_duration": 3600 + number % 100,
                        "idempotency_key": f"bench-{number}",
                        "spec": {"engine": "merge", "input": {}},
                    }
                    view = await calls.post("/jobs", body)
                    answered.append(time.time() - begin)
                    sent[view["id"]] = begin

                await at_rate(10, 3, lambda number: call(-1 - number))
                sent.clear()
                answered.clear()
                nonlocal cpu
                cpu = Cpu(cpu.pid, cpu.database)
                took = await at_rate(rate, SECONDS, call)
                deadline = time.time() + 20
                while len(sent.keys() & watch.decided.keys()) < len(sent) and time.time() < deadline:
                    await asyncio.sleep(0.05)
                return took

        took = asyncio.run(work())
        watch.stop()
        used = cpu.used()
        waits = [watch.decided.get(name, float("inf")) - begin for name, begin in sent.items()]
        share = f"server {used[0] / took:.2f} + database {used[1] / took:.2f} cores"
        if what == "sustained":
            say(kind, "submits a second, answered", len(answered) / took, "/s", rate, share)
        say(kind, f"submit -> answer at {rate:g}/s, p99", quantile(answered, 0.99) * 1000, "ms")
        say(kind, f"submit -> decision at {rate:g}/s, p50", quantile(waits, 0.5) * 1000, "ms")
        say(kind, f"submit -> decision at {rate:g}/s, p99", quantile(waits, 0.99) * 1000, "ms", 100.0, share)


# ---- heartbeats --------------------------------------------------------------------------------------------


def heartbeats() -> None:
    """1,000 allocations, each heard of every 10 s."""
    for kind in databases():
        with served(kind, 512, 200, busy=1.0, projects=40) as (_, server, cpu, running):
            holders = running[:1000]
            tokens = [lease_token(SECRET, name, 1) for name in holders]
            answered: list[float] = []

            async def work() -> float:
                async with Calls(server.url) as calls:  # noqa: B023

                    async def call(number: int) -> None:
                        begin, place = time.perf_counter(), number % len(holders)  # noqa: B023
                        await calls.post(
                            f"/allocations/{holders[place]}/heartbeat",  # noqa: B023
                            {"epoch": 1, "progress": {"step": number}},
                            tokens[place],  # noqa: B023
                        )
                        answered.append(time.perf_counter() - begin)  # noqa: B023

                    await at_rate(100, 3, call)
                    nonlocal_cpu[0] = Cpu(server.pid, cpu.database)  # noqa: B023
                    return await at_rate(len(holders) / 10, SECONDS, call)  # noqa: B023

            nonlocal_cpu = [cpu]
            took = asyncio.run(work())
            used = nonlocal_cpu[0].used()
            note = f"server {used[0] / took:.2f} + database {used[1] / took:.2f}"
            say(kind, f"{len(holders)} heartbeats each 10 s", sum(used) / took, "core", 0.5, note)
            say(kind, "heartbeat -> answer, p99", quantile(answered, 0.99) * 1000, "ms")


MEASURES = {"cycle": cycle, "decisions": decisions, "sustained": sustained, "heartbeats": heartbeats}


def main() -> int:
    """Run what is named, or everything."""
    load = psutil.getloadavg()[0]
    print(f"load average {load:.1f} on {psutil.cpu_count()} cores; each load lasts {SECONDS:g} s")
    return run_measures(MEASURES, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
