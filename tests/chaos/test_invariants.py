"""Each invariant holds on a good history, and fails on one that breaks it: by hand, without any process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.invariants import INVARIANTS, check_all
from tests.chaos.model import (
    AuditEvent,
    Evidence,
    JobRow,
    Outage,
    Probe,
    StepLine,
    TaskRow,
    UsageRow,
    WitnessLine,
)

GPUS = [["n0", 0, "u0"], ["n0", 1, "u1"]]
SHORT = {"gpus": GPUS, "held_seconds": 4.0, "confirmed": False}
USAGE = UsageRow("merge", "default", "alice", 36.0)


def event(number: int, time: float, name: str, epoch: int = 1, **fields: Any) -> AuditEvent:
    return AuditEvent(
        number, time, name, **{"job": "j1", "allocation": f"j1.{epoch}", "epoch": epoch, **fields}
    )


def end(number: int, time: float, name: str, epoch: int, held: float, confirmed: bool) -> AuditEvent:
    data = {"gpus": GPUS, "held_seconds": held, "confirmed": confirmed}
    code = "lease_expired" if name == "allocation_lost" else "exit_0"
    return event(number, time, name, epoch, code=code, data=data)


def witness(kind: str, time: float, epoch: int, pid: int, gpu: int = 0, **fields: Any) -> WitnessLine:
    return WitnessLine(kind, "n0", gpu, pid, "j1", f"j1.{epoch}", epoch, time, **fields)


def step(kind: str, number: int, epoch: int, time: float = 0.0) -> StepLine:
    return StepLine("key", kind, number, "j1", epoch, time)


def good() -> Evidence:
    """A job of two GPUs that lost its first lease at step 3 of 4, and was completed by its second epoch."""
    return Evidence(
        events=(
            event(1, 10.0, "granted", 1, data={"gpus": GPUS}),
            event(2, 11.0, "started", 1),
            end(3, 20.0, "allocation_lost", 1, 10.0, False),
            event(4, 21.0, "gpus_confirmed_free", 1, node="n0", data={"gpu_indices": [0, 1]}),
            event(5, 22.0, "granted", 2, data={"gpus": GPUS}),
            end(6, 30.0, "allocation_released", 2, 8.0, True),
            event(7, 30.0, "completed", 2, allocation=None),
        ),
        jobs=(
            JobRow(
                "j1",
                "completed",
                2,
                gpu_count=2,
                result={"metrics": {"epoch": 2, "steps": 4}},
                step_log="key",
                task="d/r/t",
            ),
        ),
        usage=(USAGE,),
        witness=(
            witness("start", 11.5, 1, 100),
            witness("alive", 20.5, 1, 100),
            witness("start", 23.0, 2, 200),
            witness("alive", 26.0, 2, 200),
            witness("end", 29.0, 2, 200),
        ),
        steps=(
            step("resume", 0, 1),
            step("step", 1, 1),
            step("step", 2, 1),
            step("checkpoint", 2, 1),
            step("step", 3, 1),
            step("resume", 2, 2),
            step("step", 3, 2),
            step("step", 4, 2),
            step("checkpoint", 4, 2),
            step("finish", 4, 2),
        ),
        probes=(Probe("j1", "j1.1", 1, 25.0, 409),),
        outages=(Outage(24.0, 28.0),),
        tasks=(TaskRow("d/r/t", "success", 1),),
    )


def with_event(number: int, **changes: Any) -> Evidence:
    """The good history with one event changed."""
    events = tuple(replace(e, **changes) if e.id == number else e for e in good().events)
    return replace(good(), events=events)


def with_job(**changes: Any) -> Evidence:
    return replace(good(), jobs=(replace(good().jobs[0], **changes),))


def with_task(state: str, evidence: Evidence | None = None) -> Evidence:
    return replace(evidence or good(), tasks=(TaskRow("d/r/t", state, 1),))


def plus(**more: tuple[Any, ...]) -> Evidence:
    """The good history with more lines at the end."""
    before = good()
    return replace(before, **{name: getattr(before, name) + rows for name, rows in more.items()})


def without_events(*numbers: int) -> Evidence:
    return replace(good(), events=tuple(e for e in good().events if e.id not in numbers))


def test_a_good_history_breaks_nothing() -> None:
    assert {name: found for name, found in check_all(good()).items() if found} == {}


def test_no_evidence_breaks_nothing() -> None:
    assert not any(check_all(Evidence()).values())


BROKEN: list[tuple[str, str, Evidence]] = [
    ("no_gpu_granted_twice", "while j1.1 held it", without_events(4)),
    ("no_gpu_granted_twice", "while j1.1 held it", with_event(4, time=25.0)),
    ("no_gpu_granted_twice", "while j1.1 held it", with_event(4, data={"gpu_indices": [1]})),
    ("no_gpu_used_twice", "at once", plus(witness=(witness("alive", 24.0, 1, 100),))),
    ("no_gpu_used_twice", "processes 200 and 201", plus(witness=(witness("start", 25.0, 2, 201),))),
    (
        "no_gpu_used_twice",
        "still used by pid 100",
        plus(witness=(witness("collision", 22.9, 2, 200, other="pid 100"),)),
    ),
    ("gpus_used_only_while_granted", "2.0 s after", plus(witness=(witness("alive", 32.0, 2, 200),))),
    ("gpus_used_only_while_granted", "never granted", plus(witness=(witness("start", 25.0, 2, 200, gpu=7),))),
    ("gpus_used_only_while_granted", "never granted", plus(witness=(witness("start", 25.0, 3, 200, gpu=1),))),
    ("gpus_used_only_while_granted", "before its grant", plus(witness=(witness("start", 5.0, 1, 99),))),
    ("every_job_is_at_rest", "is running at the end", with_job(state="running")),
    ("every_job_is_at_rest", "has ended 0 times", without_events(6)),
    ("every_job_is_at_rest", "has ended 2 times", plus(events=(replace(good().events[5], id=8),))),
    ("no_job_failed_by_a_kill", "is failed", with_job(state="failed", exit_code=1)),
    ("no_job_failed_by_a_kill", "is dead", with_job(state="dead")),
    ("no_result_of_an_old_epoch", "completed by epoch 1", with_event(7, epoch=1)),
    ("no_result_of_an_old_epoch", "completed 2 times", plus(events=(replace(good().events[6], id=8),))),
    (
        "no_result_of_an_old_epoch",
        "granted GPUs after its end",
        plus(events=(event(9, 40.0, "granted", 3, data={"gpus": []}),)),
    ),
    (
        "no_result_of_an_old_epoch",
        "the result of epoch 1",
        with_job(result={"metrics": {"epoch": 1, "steps": 4}}),
    ),
    (
        "no_result_of_an_old_epoch",
        "never said it had finished",
        replace(good(), steps=tuple(line for line in good().steps if line.kind != "finish")),
    ),
    (
        "no_result_of_an_old_epoch",
        "answered 200",
        plus(probes=(Probe("j1", "j1.1", 1, 26.0, 200),)),
    ),
    (
        "no_finished_step_redone",
        "did step 2 again",
        replace(
            good(),
            steps=(*good().steps[:6], step("step", 2, 2), *good().steps[6:]),
        ),
    ),
    ("no_finished_step_redone", "did step 4 twice", plus(steps=(step("step", 4, 2),))),
    (
        "no_step_left_out",
        "lacks steps [1]",
        replace(good(), steps=(good().steps[0], *good().steps[2:])),
    ),
    ("no_step_left_out", "lacks steps", replace(good(), steps=())),
    ("charges_equal_held_time", "was charged 35", replace(good(), usage=(replace(USAGE, gpu_seconds=35.0),))),
    ("charges_equal_held_time", "was charged 0", replace(good(), usage=())),
    (
        "charges_equal_held_time",
        "eval/default/bob was charged 5",
        plus(usage=(UsageRow("eval", "default", "bob", 5.0),)),
    ),
    ("charges_equal_held_time", "by its events it was 10.000 s", with_event(3, data=SHORT)),
    ("outages_cost_nothing", "was lost for the outage", replace(good(), outages=(Outage(12.0, 19.5),))),
    ("outages_cost_nothing", "nothing ran", replace(good(), outages=(Outage(50.0, 60.0),))),
    ("tasks_agree_with_their_jobs", "none of its jobs", with_job(task="d/r/other")),
    ("tasks_agree_with_their_jobs", "but its job was completed", with_task("deferred")),
    ("tasks_agree_with_their_jobs", "its last job is dead", with_task("failed", with_job(state="dead"))),
    (
        "tasks_agree_with_their_jobs",
        "2 of its jobs were completed",
        plus(jobs=(replace(good().jobs[0], id="j2"),)),
    ),
    ("no_process_left", "pid 7", plus(left_over=("engine, pid 7",))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "evidence"), BROKEN)
def test_a_broken_history_is_seen_and_named(name: str, words: str, evidence: Evidence) -> None:
    found = INVARIANTS[name](evidence)
    assert any(words in violation.sentence for violation in found), found


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    assert {name for name, _, _ in BROKEN} == set(INVARIANTS)


def test_a_step_after_the_last_checkpoint_may_be_done_again() -> None:
    redone = [line for line in good().steps if line.kind == "step" and line.step == 3]
    assert len(redone) == 2
    assert INVARIANTS["no_finished_step_redone"](good()) == []


def test_a_checkpoint_that_came_after_the_resume_does_not_count_against_it() -> None:
    """A zombie's checkpoint, written after the new epoch's look, covers nothing for that epoch."""
    lines = (step("resume", 0, 2), step("checkpoint", 2, 1), step("step", 1, 2))
    assert INVARIANTS["no_finished_step_redone"](Evidence(steps=lines)) == []


def test_what_is_cancelled_in_an_outage_is_not_lost_for_it() -> None:
    cancelled = replace(with_event(3, code="cancelled"), outages=(Outage(11.6, 20.6),))
    assert INVARIANTS["outages_cost_nothing"](cancelled) == []


def test_ranks_have_step_logs_of_their_own() -> None:
    job = JobRow("j1", "completed", result={"metrics": {"steps": 1}}, step_log="key")
    both = tuple(StepLine(f"key.rank-{rank}", "step", 1, "j1", 1, 0.0) for rank in (0, 1))
    assert INVARIANTS["no_step_left_out"](Evidence(jobs=(job,), steps=both)) == []
    assert INVARIANTS["no_step_left_out"](Evidence(jobs=(job,))) != []


def test_evidence_reads_back_as_it_was_written(tmp_path: Path) -> None:
    good().save(tmp_path / "evidence.json")
    assert Evidence.load(tmp_path / "evidence.json") == good()
