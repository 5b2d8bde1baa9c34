"""The order in which pending jobs are looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.builders.scheduling import JobBuilder, a_job, a_pool, a_snapshot, used

from emep.policy import Policy, parse_policy
from emep.scheduling.durations import is_starving
from emep.scheduling.order import key_among_equals
from emep.scheduling.plan import plan


def starts(
    jobs: list[JobBuilder], policy: Policy, size: int = 1, now: float = 100.0, **fields: object
) -> list[str]:
    """Ids in the order of waiting and starting on a pool that holds ``size`` GPUs."""
    decided = plan(a_snapshot([a_pool(size)], jobs, **fields), policy, now)  # type: ignore[arg-type]
    return [start.job_id for start in decided.starts] + [item.job_id for item in decided.waiting]


def test_class_comes_before_everything() -> None:
    jobs = [a_job("low").priority("low").at(0), a_job("high").priority("high").at(50)]
    assert starts(jobs, parse_policy({})) == ["high", "low"]


def test_an_alias_is_the_class_it_stands_for() -> None:
    jobs = [a_job("low").priority("low").at(0), a_job("medium").priority("medium").at(50)]
    assert starts(jobs, parse_policy({})) == ["medium", "low"]


def test_then_fair_share_then_submission_then_id() -> None:
    jobs = [
        a_job("z").of("rich").at(1),
        a_job("b").of("poor").at(9),
        a_job("a").of("poor").at(9),
        a_job("c").of("poor").at(8),
    ]
    assert starts(jobs, parse_policy({}), usage=[used("merge", "rich", "", 1000)]) == ["c", "a", "b", "z"]


def test_what_starts_is_charged_at_once() -> None:
    """A hundred jobs of A and one of B at the same instant: B's is among the first two."""
    jobs = [a_job(f"a{number:03}").of("A") for number in range(100)] + [a_job("b").of("B")]
    assert "b" in starts(jobs, parse_policy({}), size=4)[:2]


def test_without_an_entry_charge_it_is_first_come_first_served() -> None:
    jobs = [a_job(f"a{number:03}").of("A") for number in range(9)] + [a_job("b").of("B")]
    assert starts(jobs, parse_policy({"entry_charge": 0}), size=4)[-1] == "b"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("submit_time", ["wide", "long", "short"]),
        ("shortest", ["short", "wide", "long"]),
        ("smallest_area", ["short", "long", "wide"]),
    ],
)
def test_order_among_equals(order: str, expected: list[str]) -> None:
    jobs = [
        a_job("wide").at(0).gpus(4).limit(50),
        a_job("long").at(1).gpus(1).limit(60),
        a_job("short").at(2).gpus(1).limit(10),
    ]
    assert starts(jobs, parse_policy({"order": order, "reservations": 0}), size=4)[:1] == expected[:1]
    keys = sorted(jobs, key=lambda job: key_among_equals(job.build(), parse_policy({"order": order}), 5.0))
    assert [job.build().id for job in keys] == expected


def test_history_orders_where_the_limit_is_overstated() -> None:
    jobs = [
        a_job("honest").at(0).limit(100),
        a_job("overstated").at(1).limit(1000).having(estimated_duration=10.0),
    ]
    assert starts(jobs, parse_policy({"order": "shortest"})) == ["overstated", "honest"]


def test_past_the_starvation_bound_submission_order_is_back() -> None:
    policy = parse_policy({"order": "shortest", "starvation_bound": 60})
    jobs = [a_job("long").at(30).limit(1000), a_job("short").at(80).limit(1)]
    assert starts(jobs, policy, now=89.0) == ["short", "long"]
    assert starts(jobs, policy, now=90.0) == ["long", "short"]


def test_time_already_run_is_not_time_waited() -> None:
    policy = replace(parse_policy({"order": "shortest"}), starvation_bound=60.0)
    job = a_job("back").at(0).having(queued_at=95.0, preempted=True).build()
    assert not is_starving(job, policy, 100.0)
    assert is_starving(job, policy, 155.0)


def test_a_starving_job_gets_the_reservation() -> None:
    policy = parse_policy({"order": "shortest", "starvation_bound": 60})
    jobs = [a_job("big").at(0).gpus(8).limit(100), a_job("small").at(99).gpus(6).limit(10)]
    from tests.builders.scheduling import running

    busy = [running(a_job("r").gpus(4).limit(200), "n:0-3")]
    decided = plan(a_snapshot([a_pool(8)], jobs, busy), policy, 100.0)
    assert [item.job_id for item in decided.reservations] == ["big"]
