"""Work that EMEP cannot start as it was asked for is refused, and what it starts stands on one node."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update
from tests.builders.ledger import SPEC, Bench

from emep.ledger.store.tables import Job
from emep.wire.base import JobState
from emep.wire.engines import ENGINE_NAMES, PARALLEL_ENGINES
from emep.wire.errors import InvalidError, RejectedJobError
from engines.contract import ENGINES

CANDIDATES = {**SPEC, "engine": "evolve_candidates"}
POD = {"runtime": "kubernetes", "spec": None}


def test_the_control_plane_knows_the_engines_and_which_use_several_gpus() -> None:
    assert set(ENGINE_NAMES) == set(ENGINES)
    assert {name for name, entry in ENGINES.items() if entry.parallel} == PARALLEL_ENGINES


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"gpu_count": 4, "node_count": 2, "spec": CANDIDATES}, "node_count", "2 were asked for"),
        ({"node_count": 2, "gpu_per_node": 1, "spec": CANDIDATES}, "node_count", "2 were asked for"),
        ({"gpu_count": 4, "gpu_per_node": 2, "spec": CANDIDATES}, "node_count", "2 were asked for"),
        ({"gpu_count": 0, "node_count": 3, "spec": SPEC}, "node_count", "3 were asked for"),
        ({"gpu_count": 2, "node_count": 2, **POD}, "node_count", "runtime kubernetes"),
        ({"gpu_count": 2, "spec": SPEC}, "gpu_count", "merge uses one GPU"),
        ({"gpu_per_node": 2, "spec": SPEC}, "gpu_count", "merge uses one GPU"),
        ({"gpu_count": 2, "spec": SPEC, "runtime": "kubernetes"}, "gpu_count", "merge uses one GPU"),
        ({"queue": "artifact", "priority": "low", "gpu_count": 1}, "queue", "artifact"),
        ({"queue": "artifact", "priority": "low", "gpu_count": 0}, "queue", "artifact"),
        ({"queue": "tracker", "priority": "low", "gpu_count": 0, **POD}, "queue", "tracker"),
        ({"queue": "tracker", "priority": "low", "runtime": "external"}, "queue", "tracker"),
    ],
)
def test_what_cannot_be_started_as_it_was_asked_for_is_refused_and_not_kept(
    bench: Bench, fields: dict[str, Any], field: str, words: str
) -> None:
    bench.node("n0")
    bench.node("n1")
    with pytest.raises(InvalidError, match=words) as refused:
        bench.submit(**fields)
    assert (refused.value.field, str(refused.value).partition(":")[0]) == (field, field)
    assert bench.ledger.jobs.page(limit=10).items == []


@pytest.mark.parametrize("name", sorted(set(ENGINE_NAMES) - PARALLEL_ENGINES))
def test_every_engine_of_one_device_gets_one_gpu(bench: Bench, name: str) -> None:
    bench.node()
    with pytest.raises(InvalidError, match=name):
        bench.submit(gpu_count=4, spec={**SPEC, "engine": name})
    assert bench.submit(gpu_count=1, spec={**SPEC, "engine": name}).state is JobState.PENDING


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"gpu_count": 4, "node_count": 2, "runtime": "external", "spec": None}, 2),
        ({"gpu_count": 4, "runtime": "external", "spec": SPEC}, 1),
        ({"gpu_count": 6, "runtime": "external", "spec": None}, 2),
        ({"gpu_count": 4, "spec": CANDIDATES}, 1),
        ({"gpu_count": 4, "node_count": 1, "spec": CANDIDATES}, 1),
    ],
)
def test_gangs_are_for_those_who_start_their_work_themselves(
    bench: Bench, fields: dict[str, Any], nodes: int
) -> None:
    bench.node("n0")
    bench.node("n1")
    job = bench.submit(**fields)
    bench.plan()
    assert len(bench.job(job).nodes) == nodes


NVLINK = [{"topology": {"required": "nvlink"}}, {"nvlink_required": True}]


@pytest.mark.parametrize("asked", NVLINK, ids=["topology.required", "nvlink_required"])
@pytest.mark.parametrize("runtime", ["agent", "kubernetes"])
def test_an_nvlink_group_over_several_nodes_is_no_place_for_an_engine(
    bench: Bench, asked: dict[str, Any], runtime: str
) -> None:
    pod = {"labels": {"emep/runtime": "kubernetes"}} if runtime == "kubernetes" else {}
    for name in ("n0", "n1"):
        bench.node(name, gpus=2, nvlink_group_id="rack", **pod)
    with pytest.raises(RejectedJobError, match=r"4 GPUs in one node.*2") as refused:
        bench.submit(gpu_count=4, spec=CANDIDATES, runtime=runtime, **asked)
    assert bench.ledger.jobs.get(refused.value.extra["job"]["id"]).state is JobState.REJECTED
    fits = bench.submit(gpu_count=2, spec=CANDIDATES, runtime=runtime, **asked)
    gang = bench.submit(gpu_count=4, spec=None, runtime="external", **asked)
    bench.plan()
    assert len(bench.job(fits).nodes) == 1
    assert bench.job(gang).state is JobState.PENDING, "it waits for all four"


def test_a_group_that_no_node_holds_enough_of_is_said_with_its_numbers(bench: Bench) -> None:
    """Each node has four GPUs, and two of each NVLink group, which spans both."""
    from emep.wire.nodes import GpuReport, NodeRequest

    for name in ("n0", "n1"):
        gpus = [
            GpuReport(
                index=i, uuid=f"{name}-{i}", gpu_type="H", gpu_memory="80Gi", nvlink_group_id=f"g{i % 2}"
            )
            for i in range(4)
        ]
        bench.ledger.nodes.register(NodeRequest(name=name, gpus=gpus, cpu=32, memory="256Gi"))
    with pytest.raises(RejectedJobError) as refused:
        bench.submit(gpu_count=4, spec=CANDIDATES, nvlink_required=True)
    assert refused.value.message == (
        "topology: needs 4 GPUs in one node and one NVLink group, "
        "pool default has at most 2 so close together"
    )


def test_what_was_taken_in_before_these_refusals_is_never_started_twice(bench: Bench) -> None:
    bench.node("n0", gpus=2)
    bench.node("n1", gpus=2)
    free = bench.submit(gpu_count=4, runtime="external", spec=CANDIDATES)
    with bench.engine.begin() as connection:
        connection.execute(update(Job).where(Job.id == free.id).values(runtime="agent"))
    bench.plan()
    told = bench.job(free)
    assert (told.nodes, told.state) == ([], JobState.PENDING)
    assert told.reason.startswith("cannot run any more: topology: needs 4 GPUs in one node")
