"""What a task's log says of a job that waits: everything once, then what has changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.builders.jobs import job_view

from emep.triggers.waiting import WIDTH, JobNews, introduction, wrapped
from emep.wire.jobs import Explanation, HolderView

NOW = datetime(2025, 1, 1, 12, 0, tzinfo=UTC)
JOB = job_view(reason="needs 2 GPUs, 0 free in pool default", gpu_count=2)


def holder(name: str = "job-9", **fields: Any) -> HolderView:
    return HolderView(
        **{
            "job_id": name,
            "user": "bob",
            "project": "org/team",
            "job_type": "evaluate",
            "gpu_count": 2,
            "nodes": ["node-a"],
            "until": NOW + timedelta(minutes=20),
            **fields,
        }
    )


def why(**fields: Any) -> Explanation:
    ordinary: dict[str, Any] = {
        "job_id": "job-1",
        "state": "pending",
        "position": 3,
        "waiting": 5,
        "reasons": [{"code": "insufficient_gpus", "text": "needs 2 GPUs, 0 free in pool default"}],
        "class_value": 10,
        "deficit": 0.0,
        "score": 10,
        "order_key": [],
        "estimated_start": NOW + timedelta(minutes=20),
        "estimate_text": "estimated, in about 20m",
        "sentence": "",
        "holders": [holder()],
        "holder_count": 1,
    }
    return Explanation.model_validate(ordinary | fields)


def test_the_first_time_all_of_it_is_said_in_wrapped_lines():
    lines = JobNews().of_waiting(JOB, why(), NOW)
    assert lines == [
        "Job job-1 waits in queue merge: number 3 of 5.",
        "  Why: needs 2 GPUs, 0 free in pool default.",
        "  Start: 12:20 UTC (estimated, in about 20m).",
        "  GPUs that it could use are held by job job-9 (bob of org/team, evaluate) with 2 GPUs on node-a",
        "    until 12:20 UTC at the latest.",
    ]
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"estimated_start": NOW + timedelta(minutes=22)},
        {"estimate_text": "estimated, in about 18m"},
        {"waiting": 9},
        {"reasons": [{"code": "insufficient_gpus", "text": "needs 2 GPUs, 1 free in pool default"}]},
        {"holders": [holder("job-8")]},
    ],
)
def test_what_is_no_news_is_not_said(fields):
    news = JobNews()
    news.of_waiting(JOB, why(), NOW)
    assert news.of_waiting(JOB, why(**fields), NOW) == []


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (
            {"position": 2, "waiting": 4},
            [
                "Now number 2 of 4: needs 2 GPUs, 0 free in pool default. "
                "Start: 12:20 UTC (estimated, in about 20m).",
            ],
        ),
        (
            {"estimated_start": NOW + timedelta(hours=13), "estimate_text": "estimated, in about 13h"},
            [
                "Now number 3 of 5: needs 2 GPUs, 0 free in pool default. "
                "Start: 2025-01-02 01:00 UTC (estimated, in",
                "  about 13h).",
            ],
        ),
        (
            {
                "reasons": [{"code": "quota_exceeded", "text": "project x holds 4"}],
                "estimated_start": None,
                "estimate_text": "never: none come free",
                "holders": [holder("job-8", until=None, yielding=True), *[holder()] * 4],
                "holder_count": 7,
            },
            [
                "Now number 3 of 5: project x holds 4. Start: never: none come free.",
                "  GPUs that it could use are held by "
                "job job-8 (bob of org/team, evaluate) with 2 GPUs on node-a",
                "    without a time limit, about to yield; "
                "job job-9 (bob of org/team, evaluate) with 2 GPUs on",
                "    node-a until 12:20 UTC at the latest; "
                "job job-9 (bob of org/team, evaluate) with 2 GPUs on",
                "    node-a until 12:20 UTC at the latest; and 4 more jobs.",
            ],
        ),
    ],
    ids=["position", "estimate", "reason and holders"],
)
def test_what_has_changed_is_said_once(fields, lines):
    news = JobNews()
    news.of_waiting(JOB, why(), NOW)
    assert news.of_waiting(JOB, why(**fields), NOW) == lines
    assert news.of_waiting(JOB, why(**fields), NOW) == []


def test_small_moves_of_an_estimate_add_up():
    news = JobNews()
    news.of_waiting(JOB, why(), NOW)
    said = [
        bool(news.of_waiting(JOB, why(estimated_start=NOW + timedelta(minutes=20 + 2 * n)), NOW))
        for n in range(1, 6)
    ]
    assert said.count(True) == 1


def test_a_start_that_is_due_and_moves_along_with_the_clock_is_no_news():
    news = JobNews()
    news.of_waiting(JOB, why(estimated_start=NOW), NOW)
    for minutes in range(1, 30):
        now = NOW + timedelta(minutes=minutes)
        assert news.of_waiting(JOB, why(estimated_start=now), now) == []


def test_the_trigger_does_not_repeat_what_the_worker_has_said():
    worker = JobNews()
    worker.of_waiting(JOB, why(), NOW)
    trigger = JobNews(worker.handed_over())
    assert trigger.of_waiting(JOB, why(), NOW) == []
    assert trigger.of_state(job_view("starting", nodes=["n0"])) == ["Job job-1 is starting on n0"]
    assert trigger.of_waiting(JOB, why(), NOW)[0] == "Job job-1 waits in queue merge: number 3 of 5."


def test_a_job_without_a_place_has_no_waits_waits():
    job = job_view(reason="waits for an earlier try, at most another 20s")
    assert JobNews().of_state(job) == ["Job job-1 waits for an earlier try, at most another 20s"]


def test_the_ids_stand_in_the_introduction_alone():
    job = job_view(trace_id="trace-7", experiment_id="run 7", job_type="merge", gpu_count=2)
    shown = introduction(job)
    assert shown == [
        "Job job-1 asks queue merge for 2 GPUs (priority normal, project default, user alice).",
        "  Ids: trace trace-7, experiment run 7, type merge.",
        "  Its page: the link 'EMEP job' of this task. On a terminal: emep explain job-1",
    ]
    news = JobNews()
    rest = [*news.of_waiting(job, why(), NOW), *news.of_state(job_view("running", nodes=["n0"]))]
    assert not [line for line in rest if "trace-7" in line or "run 7" in line]


def test_a_name_cannot_make_a_line_of_its_own():
    assert len(wrapped("Job x\nERROR forged")) == 1
