"""The event loop around the real scheduler: time, costs, losses, failures, limits."""

from __future__ import annotations

import json

import pytest
from tests.builders.scheduling import a_node, a_pool
from tests.builders.simulating import a_spec, events_of, outcomes, simulate, starts

from emep.simulation.read.failures import Failure
from emep.simulation.report.outputs import events_jsonl, jobs_csv
from emep.simulation.run.recording import State

EIGHT = [
    a_spec("J1", 0, 4, 100),
    a_spec("J2", 1, 8, 50),
    a_spec("J3", 2, 4, 90),
    a_spec("J4", 3, 4, 100),
    a_spec("J5", 4, 2, 10),
]
SIX = [a_spec("R", 0, 4, 10), a_spec("B", 1, 4, 10), a_spec("C", 2, 6, 10), a_spec("D", 3, 2, 100)]


@pytest.mark.parametrize(
    ("reservations", "expected"),
    [("0", [0, 100, 150, 150, 240]), ("1", [0, 100, 2, 150, 150]), ("all", [0, 100, 2, 150, 150])],
)
def test_eight_gpus_start_when_each_kind_of_backfill_says(reservations: str, expected: list[float]) -> None:
    done = simulate([a_pool(8)], EIGHT, f"reservations: {reservations}")
    assert list(starts(done).values()) == expected


@pytest.mark.parametrize(("reservations", "expected"), [("1", (10, 3, 103)), ("all", (10, 30, 20))])
def test_easy_and_conservative_differ_in_the_second_job_that_waits(
    reservations: str, expected: tuple[float, float, float]
) -> None:
    found = starts(simulate([a_pool(6)], SIX, f"reservations: {reservations}"))
    assert (found["B"], found["D"], found["C"]) == expected


def test_a_job_that_ends_exactly_at_its_limit_has_completed_and_a_longer_one_is_killed() -> None:
    jobs = [a_spec("exact", 0, 1, 60, max_duration=60.0), a_spec("long", 0, 1, 61, max_duration=60.0)]
    done = outcomes(simulate([a_pool(2)], jobs))
    assert (done["exact"].state, done["exact"].end) == (State.COMPLETED, 60.0)
    assert (done["long"].state, done["long"].end) == (State.FAILED, 60.0)
    assert "max_duration of 1m" in done["long"].reason


def test_a_limit_of_the_queue_kills_only_where_the_policy_file_names_it() -> None:
    jobs = [a_spec("a", 0, 1, 13 * 3600.0)]
    assert outcomes(simulate([a_pool(1)], jobs))["a"].state is State.COMPLETED
    named = simulate([a_pool(1)], jobs, "queues: {merge: {default_max_duration: 12h}}")
    assert outcomes(named)["a"].state is State.FAILED


def test_a_job_that_waits_past_its_time_to_live_expires_where_the_policy_file_names_one() -> None:
    jobs = [a_spec("first", 0, 4, 100), a_spec("second", 1, 4, 10)]
    named = simulate([a_pool(4)], jobs, "queues: {merge: {pending_ttl: 50s}}")
    second = outcomes(named)["second"]
    assert (second.state, second.end, second.wait) == (State.EXPIRED, 51.0, 50.0)
    assert outcomes(simulate([a_pool(4)], jobs))["second"].state is State.COMPLETED


def test_what_starts_in_the_instant_of_its_expiry_has_not_expired() -> None:
    jobs = [a_spec("first", 0, 4, 51), a_spec("second", 1, 4, 10)]
    done = outcomes(simulate([a_pool(4)], jobs, "queues: {merge: {pending_ttl: 50s}}"))
    assert (done["second"].state, done["second"].first_start) == (State.COMPLETED, 51.0)


def test_a_job_that_no_node_can_hold_is_rejected_with_the_limit_it_hit() -> None:
    done = outcomes(simulate([a_pool(8)], [a_spec("big", 0, 9, 10), a_spec("fits", 0, 8, 10)]))
    assert done["big"].state is State.REJECTED
    assert "9" in done["big"].reason
    assert done["fits"].state is State.COMPLETED


def test_work_of_no_length_starts_and_completes_in_one_instant() -> None:
    done = outcomes(simulate([a_pool(1)], [a_spec("a", 5, 1, 0), a_spec("b", 5, 1, 0)]))
    assert [(one.state, one.end) for one in done.values()] == [(State.COMPLETED, 5.0)] * 2


class TestPreemption:
    """A low job of 100 s on all 4 GPUs; at 40 s a critical one of 10 s wants them."""

    COSTS = (
        "simulation: {{checkpoint_time: {checkpoint}, restart_time: {restart}}}\n"
        "preemption: {{grace_period: {grace}}}"
    )

    def run(self, checkpoint: str = "0s", restart: str = "0s", grace: str = "120s", **low: object):
        fields = {"priority": "low", **low}
        jobs = [a_spec("low", 0, 4, 100, **fields), a_spec("top", 40, 4, 10, priority="critical")]
        policy = self.COSTS.format(checkpoint=checkpoint, restart=restart, grace=grace)
        return simulate([a_pool(4)], jobs, policy)

    def test_a_job_told_to_checkpoint_loses_nothing(self) -> None:
        done = outcomes(self.run())
        assert (done["top"].first_start, done["top"].end) == (40.0, 50.0)
        assert (done["low"].end, done["low"].work_lost, done["low"].preemptions) == (110.0, 0.0, 1)

    def test_the_wait_counts_again_after_a_preemption(self) -> None:
        assert outcomes(self.run())["low"].wait == 10.0

    def test_a_checkpoint_and_a_restart_cost_their_time(self) -> None:
        done = outcomes(self.run(checkpoint="5s", restart="7s"))
        assert (done["top"].first_start, done["top"].end) == (45.0, 55.0)
        assert done["low"].end == 55.0 + 7.0 + 60.0

    def test_a_job_with_a_schedule_loses_the_work_since_its_last_checkpoint(self) -> None:
        done = outcomes(self.run(checkpoint_interval=30.0))
        assert (done["low"].work_lost, done["low"].end) == (10.0 * 4, 50.0 + 70.0)

    def test_a_checkpoint_longer_than_the_grace_is_cut_off_and_all_its_work_is_lost(self) -> None:
        done = outcomes(self.run(checkpoint="30s", grace="20s"))
        assert done["top"].first_start == 60.0
        assert (done["low"].work_lost, done["low"].end) == (40.0 * 4, 70.0 + 100.0)

    def test_a_job_that_ends_by_itself_during_its_grace_has_completed_and_was_not_preempted(self) -> None:
        jobs = [a_spec("low", 0, 4, 43, priority="low"), a_spec("top", 40, 4, 10, priority="critical")]
        recording = simulate([a_pool(4)], jobs, "simulation: {checkpoint_time: 5s}")
        low = outcomes(recording)["low"]
        assert (low.state, low.end, low.preemptions) == (State.COMPLETED, 43.0, 0)
        assert [name for _, name in events_of(recording, "low")] == ["submitted", "started", "completed"]
        assert outcomes(recording)["top"].first_start == 43.0

    def test_the_log_tells_who_made_room_for_whom(self) -> None:
        recording = self.run(checkpoint="5s")
        assert events_of(recording, "low") == [
            (0, "submitted"),
            (0, "started"),
            (40, "preempted"),
            (45, "requeued"),
            (55, "started"),
            (115, "completed"),
        ]
        told = next(json.loads(line) for line in recording.events if '"preempted"' in line)
        assert (told["for_job"], len(told["gpus"])) == ("top", 4)

    def test_a_victim_must_have_run_for_min_runtime(self) -> None:
        jobs = [a_spec("low", 0, 4, 100, priority="low"), a_spec("top", 40, 4, 10, priority="critical")]
        done = outcomes(simulate([a_pool(4)], jobs, "preemption: {min_runtime: 60s}"))
        assert done["top"].first_start == 60.0


class TestFailures:
    """Two nodes of 4 GPUs."""

    NODES = (a_node("a").gpus(4).nvlink_groups_of(4), a_node("b").gpus(4).nvlink_groups_of(4))

    def test_a_lost_node_costs_all_unsaved_work_and_the_job_starts_again_elsewhere(self) -> None:
        failures = [Failure(40.0, "a", None, down=True)]
        done = outcomes(
            simulate(self.NODES, [a_spec("job", 0, 4, 100)], "retries: {backoff: 30s}", failures)
        )["job"]
        assert (done.work_lost, done.end, done.nodes) == (40.0 * 4, 40.0 + 30.0 + 100.0, ("b",))
        assert (done.state, done.preemptions, done.wait) == (State.COMPLETED, 0, 30.0)

    def test_checkpoints_on_schedule_survive_a_lost_node(self) -> None:
        failures = [Failure(40.0, "a", None, down=True)]
        jobs = [a_spec("job", 0, 4, 100, checkpoint_interval=15.0)]
        done = outcomes(simulate(self.NODES, jobs, "retries: {backoff: 0s}", failures))["job"]
        assert (done.work_lost, done.end) == (10.0 * 4, 40.0 + 70.0)

    def test_a_bad_gpu_makes_its_job_yield_without_loss_and_takes_nothing_until_it_is_back(self) -> None:
        failures = [Failure(40.0, "a", 2, down=True), Failure(500.0, "a", 2, down=False)]
        jobs = [a_spec("job", 0, 4, 100), a_spec("wide", 200, 8, 10)]
        done = outcomes(simulate(self.NODES, jobs, "retries: {backoff: 0s}", failures))
        assert (done["job"].work_lost, done["job"].end, done["job"].nodes) == (0.0, 100.0, ("b",))
        assert done["wide"].first_start == 500.0

    def test_other_jobs_of_a_node_with_a_bad_gpu_go_on(self) -> None:
        failures = [Failure(40.0, "a", 3, down=True)]
        jobs = [a_spec("one", 0, 1, 100), a_spec("two", 0, 3, 100)]
        recording = simulate(self.NODES[:1], jobs, "retries: {backoff: 0s}", failures)
        hit = {job_id for job_id in ("one", "two") if (40, "requeued") in events_of(recording, job_id)}
        assert len(hit) == 1

    def test_requeues_for_infrastructure_end_in_a_dead_letter(self) -> None:
        failures = [Failure(10.0 * n, "a", None, down=bool(n % 2)) for n in range(1, 20)]
        done = simulate(
            self.NODES[:1],
            [a_spec("job", 0, 4, 100)],
            "retries: {backoff: 0s, max_infrastructure: 2}",
            failures,
        )
        job = outcomes(done)["job"]
        assert (job.state, job.end) == (State.DEAD, 50.0)
        assert [name for _, name in events_of(done, "job")].count("requeued") == 2
        assert "2 requeues" in job.reason

    def test_who_waits_for_a_node_that_never_comes_back_is_pending_at_the_end(self) -> None:
        jobs = [a_spec("wide", 10, 8, 10), a_spec("small", 20, 4, 50)]
        done = outcomes(simulate(self.NODES, jobs, "{}", [Failure(5.0, "a", None, down=True)]))
        assert (done["wide"].state, done["wide"].first_start) == (State.PENDING, None)
        assert "needs 8" in done["wide"].reason
        assert done["small"].state is State.COMPLETED

    def test_backoff_doubles_up_to_its_bound(self) -> None:
        failures = [
            Failure(10.0, "a", None, down=True), Failure(11.0, "a", None, down=False),
            Failure(45.0, "a", None, down=True), Failure(46.0, "a", None, down=False),
            Failure(110.0, "a", None, down=True), Failure(111.0, "a", None, down=False),
        ]  # fmt: skip
        policy = "retries: {backoff: 30s, max_backoff: 50s}"
        recording = simulate(self.NODES[:1], [a_spec("job", 0, 4, 20)], policy, failures)
        begun = [time for time, name in events_of(recording, "job") if name == "started"]
        assert begun == [0, 40, 95, 160]


def test_allocated_gpu_seconds_add_up_to_what_ran() -> None:
    recording = simulate([a_pool(8)], EIGHT)
    assert sum(one.gpu_seconds for one in recording.outcomes) == sum(
        spec.job.gpu_count * spec.duration for spec in EIGHT
    )
    spans = sum((run.end - run.start) * len(run.gpus) for run in recording.runs)
    assert spans == sum(one.gpu_seconds for one in recording.outcomes)


def test_the_same_input_gives_the_same_bytes() -> None:
    texts = {
        (jobs_csv(done), events_jsonl(done)) for done in (simulate([a_pool(8)], EIGHT) for _ in range(3))
    }
    assert len(texts) == 1


def test_estimates_from_history_order_jobs_whose_limits_say_nothing() -> None:
    known = [
        a_spec("quick", 0, 1, 10, user="ann", job_type="eval", max_duration=1000.0),
        a_spec("slow", 0, 1, 90, user="bob", job_type="eval", max_duration=1000.0),
    ]
    later = [
        a_spec("filler", 100, 1, 50, max_duration=50.0),
        a_spec("bob", 110, 1, 90, user="bob", job_type="eval", max_duration=1000.0),
        a_spec("ann", 120, 1, 10, user="ann", job_type="eval", max_duration=1000.0),
    ]
    policy = "order: shortest\nqueues: {merge: {weight: 1}}\nhalf_life: 1ms"
    found = starts(simulate([a_pool(1)], [*known, *later], policy))
    assert found["ann"] is not None
    assert found["bob"] is not None
    assert found["ann"] < found["bob"]
