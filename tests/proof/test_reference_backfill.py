"""Reservations and backfill against brute force over every time and every set of GPUs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.proof import reference
from tests.proof.draws import draw_job, draw_load, draw_nodes
from tests.proof.effort import cases

from emep.policy import Policy, default_policy
from emep.scheduling.model import Job, Node, Plan, Snapshot
from emep.scheduling.plan import plan

NOW = 10.0


def draw_queue(random: Random, count: int, most: int) -> list[Job]:
    """Jobs of one class and one entity, in order of submission, with limits of all lengths."""
    jobs = []
    for number in range(count):
        job = draw_job(random, f"j{number}", most, kinds=False)
        limit = random.choice([1.0, 5.0, 10.0, 15.0, 40.0, 100.0])
        jobs.append(replace(job, submit_time=float(number), max_duration=limit))
    return jobs


def follow(nodes: list[Node], snapshot: Snapshot, policy: Policy, decided: Plan, number: int) -> int:
    """Walk the jobs in order and hold every decision against the contract; how many passed a reservation."""
    board = reference.Board(reference.places(nodes), NOW)
    for allocation in snapshot.allocations:
        for gpu in allocation.gpus:
            end = allocation.start_time + reference.limit_of(allocation.job)
            board.busy_until[gpu] = max(end, NOW)
    starts = {start.job_id: start for start in decided.starts}
    promises = {promise.job_id: promise for promise in decided.reservations}
    closed, passed = False, 0
    sparing: dict[str, bool] = {}
    for job in snapshot.pending:
        where = f"case {number}, {job.id}"
        fits = not closed and reference.can_place(job, board.allowed(job), policy)
        assert (job.id in starts) == fits, f"{where}: fits is {fits}"
        if fits:
            gpus = starts[job.id].placement.gpus
            chosen = [board.offered[gpu] for gpu in gpus]
            assert set(chosen) <= set(board.allowed(job)), f"{where}: {gpus}"
            assert reference.is_valid(chosen, job), where
            best = reference.best_key(job, board.allowed(job), board.free(), policy)
            assert reference.placement_key(chosen, job, board.free(), policy) == best, where
            assert starts[job.id].backfilled == bool(board.promises), where
            passed += bool(board.promises)
            board.busy_until |= dict.fromkeys(gpus, NOW + reference.limit_of(job))
            continue
        if policy.reservations == 0:
            closed = True
        may_reserve = policy.reservations is None or len(board.promises) < policy.reservations
        at = board.earliest(job, policy) if may_reserve else None
        assert (job.id in promises) == (at is not None), f"{where}: earliest is {at}, {promises.get(job.id)}"
        if at is not None:
            promise = promises[job.id]
            assert promise.at == pytest.approx(at), where
            chosen = [board.offered[gpu] for gpu in promise.placement.gpus]
            assert set(chosen) <= set(board.open_at(at, job)), where
            assert len(set(chosen)) == job.gpu_count, where
            assert reference.is_valid(chosen, job), where
            made = reference.Promise(job, at, frozenset(promise.placement.gpus))
            sparing[job.id] = board.is_sparing(made, policy)
            board.promises.append(made)
    # The GPUs may be chosen when the promise is made, or when it is known what else starts now.
    for made in board.promises:
        assert sparing[made.job.id] or board.is_sparing(made, policy), f"case {number}, {made}"
    return passed


@pytest.mark.parametrize("reservations", [0, 1, 2, None])
def test_every_start_and_every_reservation_is_what_the_contract_allows(reservations: int | None) -> None:
    policy = replace(default_policy(), reservations=reservations, entry_charge=0.0)
    passed = 0
    for number, random in cases(5):
        nodes = draw_nodes(random, random.randint(2, 9), kinds=False)
        busy = draw_load(random, nodes, random.choice([0.4, 0.7, 1.0]), NOW)
        jobs = draw_queue(random, random.randint(2, 6), 5)
        possible = reference.places_when_healthy(nodes)
        jobs = [job for job in jobs if reference.can_place(job, possible.values(), policy)]
        snapshot = Snapshot(tuple(nodes), tuple(jobs), tuple(busy))
        passed += follow(nodes, snapshot, policy, plan(snapshot, policy, NOW), number)
    assert (passed > 5) == (reservations != 0)
