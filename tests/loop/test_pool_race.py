"""Airflow's scheduler and EMEP's planner at once: plain tasks and jobs never add up to more than there is.

The queueing is Airflow's own critical section, on its own tables. Every commit of either side is checked from
inside, after its last statement: on PostgreSQL under the locks it holds, on SQLite as the only writer.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session
from tests.builders.airflow_queue import AirflowQueue
from tests.builders.databases import DATABASES, empty_database
from tests.builders.ledger import Bench

from emep.ledger.airflow_pools.pools import Budget
from emep.ledger.store.database import Transaction
from emep.ledger.store.tables import AllocationGpu

GPUS = 8
ROUNDS, GRANTS, QUEUED, FULL = 300, 20, 40, 5
"""How long both sides race: so many rounds of Airflow's at least, and until so much has happened."""


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database."""
    with empty_database(request.param, tmp_path) as made:
        yield made


class Race:
    """Both sides, what they did, and every commit at which there was too much."""

    def __init__(self, engine: Engine) -> None:
        self.airflow = AirflowQueue(engine)
        self.bench = Bench(engine)
        self.bench.database.clock = time.time
        self.bench.node(gpus=GPUS)
        self.queued = self.busy = self.granted = self.ended = self.full = 0
        self.excess: list[tuple[str, int, int]] = []
        self.errors: list[BaseException] = []
        self.over = threading.Event()
        self._check_ledger()

    def _check_ledger(self) -> None:
        """Look at every commit of the ledger that changes what is held."""
        settle = self.bench.ledger.context.pools.settle

        def checked(tx: Transaction, *, only_freed: bool = False) -> None:
            settle(tx, only_freed=only_freed)
            self.look("emep", tx.session)

        self.bench.ledger.context.pools.settle = checked  # type: ignore[method-assign]

    def look(self, who: str, session: Session) -> None:
        """What this commit would leave behind."""
        plain = self.airflow.held(session)
        held = self.held(session)
        if plain + held > GPUS:
            self.excess.append((who, plain, held))
        self.full += plain + held == GPUS

    @staticmethod
    def held(session: Session) -> int:
        """GPUs that jobs hold."""
        return int(session.scalar(select(func.count()).select_from(AllocationGpu)) or 0)

    def schedule(self, each_round: Callable[[int], None] = lambda number: None) -> None:
        """Airflow's side: tasks of one to three slots come, are queued, and end; some rounds, and until there
        is proof."""
        draw = random.Random(1)
        number = 0
        while number < ROUNDS or (not self.is_proof() and number < 20 * ROUNDS):
            number += 1
            if number % 20 < 6:
                self.airflow.task(draw.choice((1, 1, 2, 3)))
            names = self.airflow.queue(check=lambda session: self.look("airflow", session))
            self.busy += names is None
            self.queued += len(names or ())
            for name in self.airflow.in_state("queued"):
                if draw.random() < 0.4:
                    self.airflow.move(name, "success")
            each_round(number)
            time.sleep(0.002)

    def is_proof(self) -> bool:
        """Both sides had their share, and there was something to quarrel about."""
        return self.granted >= GRANTS and self.queued >= QUEUED and self.full >= FULL

    def grant(self) -> None:
        """EMEP's side: jobs of one to four GPUs come, are granted and end, until the other side is over."""
        draw = random.Random(2)
        ticked = time.monotonic()
        jobs = []
        while not self.over.is_set():
            if len(jobs) < 6:
                jobs.append(self.bench.submit(gpu_count=draw.choice((1, 2, 4))))
            self.bench.planner.cycle()
            if time.monotonic() - ticked > 0.2:
                self.bench.ledger.housekeeping.tick()
                self.bench.report("n0")
                ticked = time.monotonic()
            self.over.wait(0.002)
            jobs = [job for job in map(self.bench.job, jobs) if not self._ended(job, draw.random() < 0.5)]

    def _ended(self, job: object, now: bool) -> bool:
        if job.state.value != "starting" or not now:  # type: ignore[attr-defined]
            return False
        self.bench.complete(job)  # type: ignore[arg-type]
        self.granted += 1
        return True

    def run(self, each_round: Callable[[int], None] = lambda number: None) -> None:
        """Both sides at once; raises what either raised."""
        other = threading.Thread(target=self._guarded, args=(self.grant,))
        other.start()
        self._guarded(lambda: self.schedule(each_round))
        self.over.set()
        other.join(timeout=120)
        assert not other.is_alive()
        if self.errors:
            raise self.errors[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
            self.over.set()


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """No error of anybody; Airflow's scheduler may warn that a task asks for more than its pool has."""
    loud = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "Requested pool slots" not in record.getMessage()
    ]
    assert loud == []


def test_plain_tasks_and_jobs_never_add_up_to_more_than_there_is(engine, caplog):
    race = Race(engine)
    race.run()
    assert race.excess == []
    assert_quiet(caplog)
    assert race.is_proof(), (race.granted, race.queued, race.full)
    race.bench.ledger.housekeeping.tick()
    with race.bench.database.read() as session:
        held = race.held(session)
    claimed = race.bench.ledger.context.pools.stale.claimed("default") if race.bench.database.is_sqlite else 0
    assert race.airflow.pool()[:2] == (GPUS - held - claimed, True)


def test_while_somebody_resets_the_row_emep_never_adds_to_an_excess(engine, caplog):
    """The row is reset to all GPUs again and again, as Astro's loader does at its start.

    In such a moment Airflow may give slots away that are EMEP's; what EMEP commits afterwards must not add
    to it, and the row is right again with the next commit or tick.
    """
    race = Race(engine)
    pools = race.bench.ledger.context.pools
    before, after = pools.budget, pools.after_grants
    held_before: list[int] = []
    grants: list[tuple[int, int]] = []

    def first(tx: Transaction, nodes: Collection[str]) -> Budget | None:
        held_before.append(race.held(tx.session))
        return before(tx, nodes)

    def last(tx: Transaction, budget: Budget | None) -> None:
        after(tx, budget)
        held = race.held(tx.session)
        if held > held_before[-1]:
            grants.append((race.airflow.held(tx.session), held))

    pools.budget, pools.after_grants = first, last  # type: ignore[method-assign]

    def reset(number: int) -> None:
        if number % 15 == 7:
            race.airflow.upsert_pool(GPUS)

    race.run(reset)
    assert_quiet(caplog)
    assert [pair for pair in grants if sum(pair) > GPUS] == []
    assert len(grants) > 5
    assert race.queued >= QUEUED
    race.bench.ledger.housekeeping.tick()
    assert race.airflow.pool()[1] is True
