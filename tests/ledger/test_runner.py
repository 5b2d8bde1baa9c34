"""The thread that looks at time-outs, beside an event loop that is held up."""

from __future__ import annotations

import time

from tests.builders.ledger import Bench

from emep.ledger.planning import runner as module
from emep.ledger.planning.runner import Runner
from emep.wire.base import JobState


def silence(bench: Bench, runner: Runner, seconds: float) -> None:
    """No heartbeat is taken for so long; the thread looks all the same."""
    for _ in range(int(seconds / 5)):
        bench.clock.advance(5)
        runner.tick()


def test_a_server_that_hears_nothing_loses_no_lease_and_gives_each_a_full_period_afterwards(
    bench: Bench, monkeypatch
) -> None:
    bench.node()
    job = bench.running()
    runner = Runner(bench.ledger, bench.planner)
    runner.heard()
    monkeypatch.setattr(module, "DEAF_SECONDS", -1.0)
    silence(bench, runner, 300)
    assert bench.job(job).state is JobState.RUNNING
    monkeypatch.setattr(module, "DEAF_SECONDS", 600.0)
    runner.heard()
    silence(bench, runner, bench.policy.lease.expiry - 5)
    assert bench.job(job).state is JobState.RUNNING, "it may be heard now"
    silence(bench, runner, 15)
    assert bench.job(job).state is JobState.PENDING


def test_a_server_that_hears_looks_as_ever(bench: Bench) -> None:
    bench.node()
    job = bench.running()
    runner = Runner(bench.ledger, bench.planner)
    runner.heard()
    silence(bench, runner, bench.policy.lease.expiry + 10)
    assert bench.job(job).state is JobState.PENDING


def test_a_served_application_is_heard(tmp_path) -> None:
    """The application's own event loop says so, and stops saying so when it is held up."""
    import asyncio

    from tests.builders.ledger import make_settings, sqlite_engine

    from emep.api.app import create_app
    from emep.api.runtime import Runtime
    from emep.ledger.store.tables import Base

    engine = sqlite_engine(str(tmp_path / "ledger.db"))
    Base.metadata.create_all(engine)
    runtime = Runtime.build(engine, make_settings())
    app = create_app(runtime)

    async def serve() -> list[float | None]:
        seen = []
        async with app.router.lifespan_context(app):
            for _ in range(2):
                await asyncio.sleep(0.6)
                seen.append(runtime.runner._heard_at)
        return seen

    first, second = asyncio.run(serve())
    assert first is not None
    assert second is not None
    assert first < second <= time.monotonic()
    engine.dispose()
