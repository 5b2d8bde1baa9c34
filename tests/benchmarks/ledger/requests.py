"""Figures of requests at a fixed rate: submissions, batches, heartbeats."""

from __future__ import annotations

import asyncio
import time

from tests.benchmarks.ledger.load import Calls, Cpu, Watch, at_rate, quantile
from tests.benchmarks.ledger.seed import SECRET
from tests.benchmarks.ledger.setting import SECONDS, databases, say, served
from tests.builders.emep_server import USERS

from emep.ledger.store.ids import lease_token


def decisions() -> None:
    """Submit to decision at 50 single submits a second with 2,000 jobs pending on a full cluster."""
    for kind in databases():
        _submit(kind, 50.0, "decision", 2000)


def sustained() -> None:
    """150 single submits a second: somewhat more are offered."""
    for kind in databases():
        _submit(kind, 165.0, "sustained", 2000)


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
        limit = 100.0 if what == "decision" else None
        share = f"server {used[0] / took:.2f} + database {used[1] / took:.2f} cores"
        if what == "sustained":
            say(kind, f"submits a second of {rate:g} offered", len(answered) / took, "/s", 150.0, share)
        say(kind, f"submit -> answer at {rate:g}/s, p99", quantile(answered, 0.99) * 1000, "ms")
        say(kind, f"submit -> decision at {rate:g}/s, p50", quantile(waits, 0.5) * 1000, "ms")
        say(kind, f"submit -> decision at {rate:g}/s, p99", quantile(waits, 0.99) * 1000, "ms", limit, share)


def _request(number: int) -> dict[str, object]:
    return {
        "project": f"p{number % 40:03d}",
        "user": f"u{number % 5}",
        "gpu_count": (1, 1, 2, 4, 8)[number % 5],
        "max_duration": 3600 + number % 100,
        "idempotency_key": f"bench-{number}",
        "spec": {"engine": "evolve_candidates", "input": {}},
    }


def batches() -> None:
    """500 jobs a second in batches of 100: somewhat more are offered."""
    size, rate, limit = 100, 550, 500
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
            what = f"jobs a second of {rate} offered, by batches of {size}"
            say(kind, what, sum(taken) / took, "/s", limit, note)


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
