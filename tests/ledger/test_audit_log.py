"""The audit's log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from sqlalchemy import select
from tests.builders.ledger import Bench

from emep.ledger.store.audit_log import line
from emep.ledger.store.tables import Event
from emep.ledger.store.transaction import MANY_EVENTS, Transaction
from emep.wire.errors import ConflictError


def test_decisions_are_logged_with_what_follows_a_job_through_every_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.node()
    with caplog.at_level(logging.INFO, logger="emep.audit"):
        job = bench.running(trace_id="t-1", experiment_id="e-1")
        bench.ledger.jobs.cancel(job.id, actor="alice", reason="enough")
    lines = [record.getMessage() for record in caplog.records if record.name == "emep.audit"]
    granted = next(text for text in lines if text.startswith("granted "))
    assert f"job={job.id}" in granted
    assert "trace_id=t-1 experiment_id=e-1 job_type=merge" in granted
    told = next(text for text in lines if text.startswith("told_to_yield "))
    assert "actor=alice" in told
    assert told.endswith(": enough")


def test_what_was_rolled_back_is_not_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.node()
    job = bench.running()
    bench.complete(job)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="emep.audit"), pytest.raises(ConflictError):
        bench.ledger.jobs.cancel(job.id, actor="alice")
    assert not [record for record in caplog.records if record.name == "emep.audit"]


def test_somebody_s_words_make_no_lines_of_their_own() -> None:
    event = {
        "event": "cancelled", "job_id": "j", "allocation_id": None, "epoch": 0, "node": None,
        "reason_code": "", "actor": "eve", "reason": "a\nERROR fire", "data": {},
    }  # fmt: skip
    assert line(event) == "cancelled job=j epoch=0 actor=eve: a\\nERROR fire"


def test_many_events_at_once_are_kept_as_single_ones_are(bench: Bench) -> None:
    reason = 'a "quoted" word, a back\\slash, a line\nand ein Wört 🙂'
    facts = {"share": 0.1, "count": 3, "nothing": None, "list": [1, "zwei", {"three": True}]}

    def work(count: int) -> Callable[[Transaction], None]:
        def emit(tx: Transaction) -> None:
            for number in range(count):
                tx.emit("looked_at", node=f"n{number}", code="c", reason=reason, **facts)

        return emit

    bench.ledger.context.database.write(work(1))
    bench.ledger.context.database.write(work(2 * MANY_EVENTS))
    columns = ("time", "event", "actor", "job_id", "allocation_id", "epoch", "reason_code", "reason", "data")
    with bench.ledger.context.database.read() as session:
        kept = list(session.scalars(select(Event).where(Event.event == "looked_at").order_by(Event.id)))
    assert [event.node for event in kept] == ["n0", *(f"n{number}" for number in range(2 * MANY_EVENTS))]
    assert [event.id for event in kept] == list(range(kept[0].id, kept[0].id + len(kept)))
    assert {str([getattr(event, name) for name in columns]) for event in kept} == {
        str([kept[0].time, "looked_at", "scheduler", None, None, None, "c", reason, facts])
    }
