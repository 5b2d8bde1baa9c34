"""Placement against brute force over every set of GPUs."""

from __future__ import annotations

from tests.proof import reference
from tests.proof.draws import draw_job, draw_load, draw_nodes
from tests.proof.effort import cases

from emep.policy import default_policy
from emep.scheduling.model import Snapshot
from emep.scheduling.plan import plan

POLICY = default_policy()
NOW = 10.0


def test_every_placement_is_the_first_in_order_of_all_there_are() -> None:
    started = 0
    for number, random in cases():
        nodes = draw_nodes(random, random.randint(2, 12))
        busy = draw_load(random, nodes, random.choice([0.0, 0.2, 0.5]), NOW)
        job = draw_job(random, "x", 6)
        decided = plan(Snapshot(tuple(nodes), (job,), tuple(busy)), POLICY, NOW)
        offered = reference.places(nodes)
        held = {gpu for allocation in busy for gpu in allocation.gpus}
        free = [place for gpu, place in offered.items() if gpu not in held]
        best = reference.best_key(job, free, free, POLICY)
        if best is None:
            assert not decided.starts, f"case {number}: {job} started where nothing fits"
            continue
        started += 1
        assert [start.job_id for start in decided.starts] == ["x"], f"case {number}: {job} fits: {best}"
        gpus = decided.starts[0].placement.gpus
        chosen = [offered[gpu] for gpu in gpus]
        assert len(set(gpus)) == job.gpu_count, f"case {number}"
        assert all(reference.fits_job(place, job, POLICY) for place in chosen), f"case {number}"
        assert reference.is_valid(chosen, job), f"case {number}: {gpus}"
        key = reference.placement_key(chosen, job, free, POLICY)
        assert key == best, f"case {number}: {job} got {gpus}, {key} is not {best}"
        assert decided.starts[0].placement.nodes == tuple(dict.fromkeys(gpu.node for gpu in gpus))
    assert started > 100


def test_a_job_is_rejected_just_where_the_healthy_empty_cluster_could_never_run_it() -> None:
    verdicts = {True: 0, False: 0}
    for number, random in cases():
        nodes = draw_nodes(random, random.randint(1, 10))
        busy = draw_load(random, nodes, random.choice([0.0, 0.5, 1.0]), NOW)
        job = draw_job(random, "x", 8)
        decided = plan(Snapshot(tuple(nodes), (job,), tuple(busy)), POLICY, NOW)
        possible = reference.can_place(job, reference.places_when_healthy(nodes).values(), POLICY)
        verdicts[possible] += 1
        assert bool(decided.rejections) is not possible, f"case {number}: {job}, {decided.rejections}"
    assert min(verdicts.values()) > 50


def test_names_decide_among_equals_so_that_the_same_input_gives_the_same_output() -> None:
    for number, random in cases(2):
        nodes = draw_nodes(random, random.randint(2, 10))
        busy = draw_load(random, nodes, 0.3, NOW)
        job = draw_job(random, "x", 4)
        first = plan(Snapshot(tuple(nodes), (job,), tuple(busy)), POLICY, NOW)
        shuffled, reordered = nodes[:], busy[:]
        random.shuffle(shuffled)
        random.shuffle(reordered)
        again = plan(Snapshot(tuple(shuffled), (job,), tuple(reordered)), POLICY, NOW)
        assert first.starts == again.starts, f"case {number}"
        assert first.rejections == again.rejections, f"case {number}"
