"""What ``/emep/health`` says of the scheduler's thread."""

from __future__ import annotations

import errno
import threading

import pytest
from sqlalchemy.exc import OperationalError
from tests.builders.ledger import Bench

from emep.ledger.planning import runner_health
from emep.ledger.planning.runner import Runner
from emep.ledger.planning.runner_health import HealthRecord, failure_code
from emep.wire.errors import UnavailableError


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> HealthRecord:
    return HealthRecord()


def test_changes_that_wait_too_long_are_late_and_a_plan_makes_it_good(
    record: HealthRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(runner_health.time, "monotonic", lambda: now)
    record.went_well(has_news=True)
    now += runner_health.BEHIND_SECONDS
    assert not record.is_late
    now += 1
    assert record.is_late
    record.went_well(has_news=False)
    assert not record.is_late


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OperationalError("INSERT", {}, Exception("database or disk is full")), "disk_full"),
        (OperationalError("INSERT", {}, Exception("could not extend file: No space left")), "disk_full"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OperationalError("SELECT", {}, Exception("database disk image is malformed")), "database"),
        (UnavailableError("the database is busy"), "database"),
        (KeyError("a defect"), "plan"),
    ],
)
def test_a_failure_has_a_stable_word(error: Exception, code: str) -> None:
    assert failure_code(error) == code


def test_a_thread_that_fails_each_plan_says_so_until_one_works(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, works = threading.Event(), threading.Event()
    runner = Runner(bench.ledger, bench.planner)
    assert runner.health().state == "stopped"
    plan = bench.planner.cycle

    def cycle() -> object:
        if works.is_set():
            return plan()
        failed.set()
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    monkeypatch.setattr(bench.planner, "cycle", cycle)
    runner.start()
    try:
        bench.node(gpus=1)
        bench.submit(gpu_count=1)
        assert failed.wait(30)
        until = threading.Event()
        while runner.health().state != "failing":
            assert not until.wait(0.01)
        found = runner.health()
        assert (found.ok, found.failing) == (False, "disk_full")
        works.set()
        while not runner.health().ok:
            assert not until.wait(0.01)
        assert runner.health().state in ("idle", "planning")
    finally:
        runner.stop()
