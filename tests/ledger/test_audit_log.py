"""The audit's log lines."""

from __future__ import annotations

import logging

import pytest
from tests.builders.ledger import Bench

from emep.exceptions import ConflictError
from emep.ledger.audit_log import line


def test_decisions_are_logged_with_what_follows_a_job_through_every_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.node()
    with caplog.at_level(logging.INFO, logger="emep.audit"):
        job = bench.running(trace_id="t-1", experiment_id="e-1")
        bench.ledger.cancel(job.id, actor="alice", reason="enough")
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
        bench.ledger.cancel(job.id, actor="alice")
    assert not [record for record in caplog.records if record.name == "emep.audit"]


def test_somebody_s_words_make_no_lines_of_their_own() -> None:
    event = {
        "event": "cancelled", "job_id": "j", "allocation_id": None, "epoch": 0, "node": None,
        "reason_code": "", "actor": "eve", "reason": "a\nERROR fire", "data": {},
    }  # fmt: skip
    assert line(event) == "cancelled job=j epoch=0 actor=eve: a\\nERROR fire"
