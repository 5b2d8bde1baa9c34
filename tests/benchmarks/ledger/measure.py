"""Figures of the control plane: ``python -m tests.benchmarks.ledger.measure [NAME ..]``.

Each runs on SQLite, and on PostgreSQL where ``EMEP_TEST_POSTGRES_URL`` names a database that may be
emptied. Every figure stands beside its limit, with CPU seconds beside the clock's: on a busy machine only
those compare. Nothing is asserted here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import subprocess
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
from tests.builders.emep_server import AGENT_SECRET, USERS, EmepServer
from tests.builders.ledger import make_settings

from emep.ledger.database import Database
from emep.ledger.ids import lease_token
from emep.ledger.planner import Planner
from emep.ledger.service import LedgerService
from emep.policy import default_policy

POSTGRES_URL = os.environ.get("EMEP_TEST_POSTGRES_URL", "")
SECONDS = float(os.environ.get("EMEP_BENCH_SECONDS", "20"))
"""How long each load lasts."""
GPUS, ROUNDS = 4, 6
"""Simulated GPUs of the agent, and jobs on each of them, one after the other."""
POLICY = "health: {report_every: 1h}"
"""The seeded nodes have no agents, and are to stay alive without."""

Loaded = tuple[Engine, str, list[str], Path]
Served = tuple[Engine, EmepServer, Cpu, list[str]]


def say(kind: str, name: str, value: float, unit: str, limit: float | None = None, note: str = "") -> None:
    """One line: the figure, and what part of its limit it is."""
    share = "" if limit is None else f"{value / limit:7.1%} of {limit:g} {unit}"
    print(f"{kind:10} {name:46} {value:9.3f} {unit:4} {share:24} {note}".rstrip(), flush=True)


def databases() -> list[str]:
    """SQLite, and PostgreSQL where there is one."""
    return ["sqlite", *(["postgresql"] if POSTGRES_URL else [])]


@contextmanager
def loaded(
    kind: str, nodes: int, pending: int, **load: float
) -> Iterator[tuple[Engine, str, list[str], Path]]:
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
def served(
    kind: str, nodes: int, pending: int, **load: float
) -> Iterator[tuple[Engine, EmepServer, Cpu, list[str]]]:
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
    """Load, plan and commit with 10,000 pending on 4,096 nodes.

    The first cycle reads everything and writes why each job waits; the next ones read what has changed; a
    planner that is started again reads everything and finds most reasons written.
    """
    logging.getLogger("emep.audit").setLevel(logging.WARNING)
    for kind in databases():
        with loaded(kind, 4096, 10_000) as (engine, _, _, _):
            policy = default_policy()
            ledger = LedgerService(Database(engine), lambda: policy, make_settings())  # noqa: B023
            ledger.database.prepare()
            planner = Planner(ledger, "bench")
            cpu = Cpu(os.getpid(), _database_name(kind))
            for name in ("first", "second", "third", "restart"):
                if name == "restart":
                    planner = Planner(ledger, "bench")
                before = cpu.used()
                done = planner.cycle()
                assert done is not None
                after = cpu.used()
                note = f"cpu {after[0] - before[0]:.2f} + database {after[1] - before[1]:.2f} s, "
                note += f"{len(done.plan.starts)} started, {len(done.seen.snapshot.pending)} pending"
                say(kind, f"whole cycle, {name}", done.seconds, "s", 3.0, note)
                for part, (wall, own) in done.parts.items():
                    say(kind, f"  {part}", wall, "s", note=f"cpu {own:.2f} s")


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
                    view = await calls.post("/jobs", _request(number))
                    answered.append(time.time() - begin)
                    sent[view["id"]] = begin

                await at_rate(10, 3, lambda number: call(-1 - number))
                sent.clear()
                answered.clear()
                nonlocal cpu
                cpu = Cpu(cpu.pid, cpu.database)
                took = await at_rate(rate, SECONDS, call)
                await asyncio.to_thread(watch.wait_for, sent.keys(), 20.0)
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


def _request(number: int) -> dict[str, object]:
    return {
        "project": f"p{number % 40:03d}",
        "user": f"u{number % 5}",
        "gpu_count": (1, 1, 2, 4, 8)[number % 5],
        "max_duration": 3600 + number % 100,
        "idempotency_key": f"bench-{number}",
        "spec": {"engine": "merge", "input": {}},
    }


def batches() -> None:
    """500 jobs a second in batches of 100."""
    size, rate = 100, 500
    for kind in databases():
        with served(kind, 64, 2000, busy=1.0, projects=40) as (_, server, cpu, _):
            taken: list[int] = []

            async def work(url: str) -> float:
                async with Calls(url) as calls:
                    await calls.log_in("admin", USERS["admin"])

                    async def call(number: int) -> None:
                        jobs = [_request(number * size + place) for place in range(size)]
                        answer = await calls.post("/jobs:batch", {"jobs": jobs})
                        taken.append(answer["created"])  # noqa: B023

                    return await at_rate(rate / size, SECONDS, call)

            took = asyncio.run(work(server.url))
            used = cpu.used()
            note = f"server {used[0] / took:.2f} + database {used[1] / took:.2f} cores, logging in included"
            say(kind, f"jobs a second by batches of {size}", sum(taken) / took, "/s", rate, note)


# ---- heartbeats --------------------------------------------------------------------------------------------


def heartbeats() -> None:
    """1,000 allocations, each heard of every 10 s."""
    for kind in databases():
        with served(kind, 512, 200, busy=1.0, projects=40) as (_, server, cpu, running):
            holders = running[:1000]
            tokens = [lease_token(SECRET, name, 1) for name in holders]
            answered: list[float] = []

            async def work() -> float:
                async with Calls(server.url) as calls:

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


# ---- idle GPUs ---------------------------------------------------------------------------------------------


def idle() -> None:
    """How long a GPU of an agent's is idle in a full queue: from an engine's end to the next one's start.

    With the supervisor as it is, and with one that does next to nothing: what is left then is the agent's
    and the control plane's.
    """
    python, here = Path(sys.executable), Path(__file__).parent
    supervisors = {
        "emep-engine": f"env PYTHONPATH={here / 'engine_site'} {python.with_name('emep-engine')}",
        "bare": f"{python} -I -S {here / 'short_work.py'}",
    }
    for kind, (what, command) in itertools.product(databases(), supervisors.items()):
        with tempfile.TemporaryDirectory(prefix="emep-bench-") as name:
            folder = Path(name)
            url = f"sqlite:///{folder}/emep.db" if kind == "sqlite" else POSTGRES_URL
            make_engine(url).dispose()
            server = EmepServer(folder, None if kind == "sqlite" else url).start()
            agent = _start_agent(server, folder, command)
            try:
                asyncio.run(_keep_busy(server, folder))
                gaps = _gaps(folder / "witness")
            finally:
                agent.terminate()
                agent.wait(30)
                server.stop()
        note = f"{len(gaps)} gaps; starting two bare interpreters takes {_start_of_two():.2f} s of it here"
        say(kind, f"GPU idle between two jobs ({what}), median", quantile(gaps, 0.5), "s", 1.0, note)
        say(kind, f"GPU idle between two jobs ({what}), p95", quantile(gaps, 0.95), "s", 1.0)


def _start_of_two() -> float:
    """Seconds that this machine takes now for what no agent can spare: a wrapper, and the work itself."""
    begin = time.perf_counter()
    for _ in range(2):
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return time.perf_counter() - begin


def _start_agent(server: EmepServer, folder: Path, engine: str) -> subprocess.Popen[bytes]:
    options = {
        "--api-url": server.url,
        "--name": "n0",
        "--simulate": str(GPUS),
        "--state-dir": str(folder / "agent"),
        "--engine-command": engine,
    }
    command = [
        str(Path(sys.executable).with_name("emep")),
        "agent",
        *(word for pair in options.items() for word in pair),
    ]
    with (folder / "agent.log").open("wb") as output:
        environment = {**os.environ, "EMEP_AGENT_TOKEN": AGENT_SECRET}
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


async def _keep_busy(server: EmepServer, folder: Path) -> None:
    """Submit jobs of one GPU for several rounds, and wait for the last."""
    witness = folder / "witness"
    witness.mkdir()
    async with Calls(server.url) as calls:
        await calls.log_in("admin", USERS["admin"])
        for _ in range(GPUS * ROUNDS):
            given = {"seconds": 0.5, "witness": str(witness)}
            await calls.post(
                "/jobs", {"cpu": 0.1, "gpu_count": 1, "spec": {"engine": "merge", "input": given}}
            )
        deadline = time.time() + 180
        while len(list(witness.iterdir())) < GPUS * ROUNDS:
            if time.time() > deadline:
                raise RuntimeError(f"the jobs do not end:\n{(folder / 'agent.log').read_text()[-2000:]}")
            await asyncio.sleep(0.2)


def _gaps(witness: Path) -> list[float]:
    """Seconds from each run's end to the begin of the next on the same GPU."""
    runs: dict[str, list[tuple[float, float]]] = {}
    for path in witness.iterdir():
        run = json.loads(path.read_text())
        runs.setdefault(run["gpus"], []).append((run["begin"], run["end"]))
    return [
        after[0] - before[1]
        for of_gpu in runs.values()
        for before, after in itertools.pairwise(sorted(of_gpu))
    ]


MEASURES = {
    "cycle": cycle,
    "decisions": decisions,
    "sustained": sustained,
    "batches": batches,
    "heartbeats": heartbeats,
    "idle": idle,
}


def main() -> int:
    """Run what is named, or everything."""
    load = psutil.getloadavg()[0]
    print(f"load average {load:.1f} on {psutil.cpu_count()} cores; each load lasts {SECONDS:g} s")
    return run_measures(MEASURES, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
