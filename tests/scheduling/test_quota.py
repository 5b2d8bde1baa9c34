"""Limits of queues and projects, nested ones included, while a plan is made."""

from __future__ import annotations

from tests.builders.scheduling import JobBuilder, a_job, a_pool, a_snapshot, running

from emep.policy import parse_policy
from emep.scheduling.model import Hold
from emep.scheduling.plan import plan

POLICY = parse_policy(
    {
        "projects": {"org": {"max_gpus": 4, "projects": {"team": {"max_gpus": 3}}}},
        "queues": {"eval": {"max_gpus": 2}},
    }
)


def started(jobs: list[JobBuilder], busy: list[object] = []) -> list[str]:  # noqa: B006
    decided = plan(a_snapshot([a_pool(16)], jobs, busy), POLICY, 5.0)  # type: ignore[arg-type]
    return [start.job_id for start in decided.starts]


def test_starts_of_the_same_plan_count() -> None:
    assert started([a_job(f"j{number}").of("org/team").gpus(2).at(number) for number in range(3)]) == ["j0"]


def test_every_level_above_counts() -> None:
    jobs = [
        a_job("t").of("org/team").gpus(3),
        a_job("o").of("org").gpus(2).at(1),
        a_job("o1").of("org").at(2),
    ]
    assert started(jobs) == ["t", "o1"]


def test_a_queue_has_a_limit_too() -> None:
    jobs = [a_job(f"e{number}").queue("eval").at(number) for number in range(3)]
    assert started(jobs) == ["e0", "e1"]


def test_what_runs_counts() -> None:
    busy = [running(a_job("r").of("org/team").gpus(2), "n:0-1")]
    assert started([a_job("x").of("org/team").gpus(2), a_job("y").of("org/team").at(1)], busy) == ["y"]


def test_what_is_promised_counts_for_others_and_not_twice_for_its_owner() -> None:
    gpus = running(a_job("r").gpus(3), "n:0-2").gpus
    snapshot = a_snapshot(
        [a_pool(16)],
        [a_job("owner").of("org").gpus(3).at(1).having(not_before=9.0), a_job("other").of("org").gpus(2)],
    )
    held = type(snapshot)(snapshot.nodes, snapshot.pending, holds=(Hold("owner", gpus),))
    assert not plan(held, POLICY, 5.0).starts
    assert [start.job_id for start in plan(held, POLICY, 9.0).starts] == ["owner"]


def test_a_cpu_job_needs_no_quota() -> None:
    busy = [running(a_job("r").of("org").gpus(4), "n:0-3")]
    assert started([a_job("c").of("org").gpus(0)], busy) == ["c"]
