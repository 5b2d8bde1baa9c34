"""Verdicts on jobs that can never run: code, field, and a message with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.scheduling import GIB, a_job, a_node, a_pool, a_snapshot, running

from emep.policy import parse_policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.intake import validate_job
from emep.scheduling.model import GpuState, LabelTerm, RejectCode
from emep.scheduling.plan import plan

POLICY = parse_policy(
    {
        "projects": {"org": {"max_gpus": 12, "projects": {"team": {"max_gpus": 6}}}},
        "queues": {"artifact": {"pools": ["none-such"]}},
    }
)
NODES = [
    a_node("a").gpus(8, "H100", 80 * GIB).nvlink_groups_of(4).rack("r1").label("zone", "1").build(),
    a_node("b").gpus(8, "H100", 80 * GIB).nvlink_groups_of(4).rack("r1").build(),
    a_node("c").gpus(4, "A100", 40 * GIB).rack("r2").build(),
]


@pytest.mark.parametrize(
    ("fields", "code", "field", "words"),
    [
        ({"gpu_count": 21}, RejectCode.TOO_MANY_GPUS, "gpu_count", ["21", "pool default holds 20"]),
        ({"gpu_count": 17, "gpu_type": "H100"}, RejectCode.TOO_MANY_GPUS, "gpu_count", ["17", "16"]),
        (
            {"gpu_count": 5, "nvlink_required": True},
            RejectCode.NVLINK_GROUP_TOO_SMALL,
            "gpu_count",
            ["5", "holds 4"],
        ),
        (
            {"gpu_count": 1, "nvlink_required": True, "gpu_type": "A100"},
            RejectCode.NVLINK_GROUP_TOO_SMALL,
            "gpu_count",
            ["holds 0"],
        ),
        (
            {"gpu_count": 17, "topology_required": "rack"},
            RejectCode.TOPOLOGY_TOO_SMALL,
            "topology",
            ["largest rack fits 16 of 17"],
        ),
        (
            {"gpu_count": 9, "topology_required": "node"},
            RejectCode.TOPOLOGY_TOO_SMALL,
            "topology",
            ["fits 8 of 9"],
        ),
        (
            {"gpu_count": 12, "node_count": 2, "gpu_type": "A100"},
            RejectCode.TOO_MANY_GPUS,
            "gpu_count",
            ["12", "4"],
        ),
        (
            {"gpu_count": 15, "node_count": 3},
            RejectCode.TOPOLOGY_TOO_SMALL,
            "node_count",
            ["3 nodes with 5 GPUs", "has 2"],
        ),
        ({"gpu_count": 5, "node_count": 2}, RejectCode.NOT_DIVISIBLE, "node_count", ["5 GPUs", "2 nodes"]),
        ({"gpu_memory_min": 81 * GIB}, RejectCode.GPU_MEMORY, "gpu_memory_min", ["81Gi", "80Gi"]),
        (
            {"gpu_memory_min": 41 * GIB, "gpu_type": "A100"},
            RejectCode.GPU_MEMORY,
            "gpu_memory_min",
            ["A100", "40Gi"],
        ),
        ({"gpu_type": "H200"}, RejectCode.GPU_TYPE, "gpu_type", ["H200", "H100"]),
        ({"priority": "hgih"}, RejectCode.UNKNOWN_CLASS, "priority", ["hgih", "'high'"]),
        ({"priority": "realtime"}, RejectCode.UNKNOWN_CLASS, "priority", ["queue merge"]),
        ({"queue": "marge"}, RejectCode.UNKNOWN_QUEUE, "queue", ["marge", "'merge'"]),
        (
            {"project": "org/team", "gpu_count": 7},
            RejectCode.OVER_QUOTA,
            "gpu_count",
            ["org/team", "at most 6"],
        ),
        (
            {"project": "org/other", "gpu_count": 13},
            RejectCode.OVER_QUOTA,
            "gpu_count",
            ["project org ", "12"],
        ),
    ],
)
def test_verdicts(fields: dict[str, Any], code: RejectCode, field: str, words: list[str]) -> None:
    verdict = validate_job(a_job("x").having(**fields).build(), NODES, POLICY)
    assert verdict is not None
    assert (verdict.code, verdict.field) == (code, field)
    assert all(word in verdict.message for word in words), verdict.message


def test_labels_that_no_node_has() -> None:
    verdict = validate_job(a_job("x").near("zone", "9").build(), NODES, POLICY)
    assert verdict is not None
    assert verdict.code is RejectCode.LABELS
    assert "zone=9" in verdict.message


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_count": 20},
        {"gpu_count": 4, "nvlink_required": True},
        {"gpu_count": 16, "topology_required": "rack"},
        {"gpu_count": 8, "topology_required": "node"},
        {"gpu_count": 12, "node_count": 3},
        {"gpu_memory_min": 80 * GIB},
        {"project": "org/team", "gpu_count": 6},
    ],
)
def test_what_could_run_on_the_empty_healthy_cluster_waits(fields: dict[str, Any]) -> None:
    sick = [
        a_node("a")
        .gpus(8, "H100", 80 * GIB)
        .nvlink_groups_of(4)
        .rack("r1")
        .with_state(GpuState.UNHEALTHY, *range(8))
        .build(),
        a_node("b")
        .gpus(8, "H100", 80 * GIB)
        .nvlink_groups_of(4)
        .rack("r1")
        .used_by_others(*range(8))
        .build(),
        a_node("c").gpus(4, "A100", 40 * GIB).rack("r2").having(schedulable=False).build(),
    ]
    job = a_job("x").having(**fields).build()
    assert validate_job(job, sick, POLICY) is None
    assert [item.job_id for item in plan(a_snapshot(sick, [job]), POLICY, 0.0).waiting] == ["x"]


def test_the_empty_healthy_cluster_runs_whatever_is_not_rejected() -> None:
    for gpus in (1, 4, 8, 16, 20, 21):
        for nodes in (None, 1, 2, 3, 4):
            for nvlink in (False, True):
                for level in (None, "node", "rack", "block"):
                    job = (
                        a_job("x")
                        .gpus(gpus)
                        .having(node_count=nodes, nvlink_required=nvlink, topology_required=level)
                    )
                    verdict = validate_job(job.build(), NODES, POLICY)
                    started = plan(a_snapshot(NODES, [job]), POLICY, 0.0).starts
                    assert (verdict is None) == bool(started), (job, verdict)


def test_a_pool_that_nobody_has_reported_yet_rejects_nothing() -> None:
    rules = parse_policy({"queues": {"eval": {"pools": ["later"]}}})
    assert validate_job(a_job("x").queue("eval").gpus(99).build(), NODES, rules) is None


def test_an_index_does_as_well_as_the_nodes() -> None:
    job = a_job("x").gpus(21).build()
    assert validate_job(job, ClusterIndex(NODES), POLICY) == validate_job(job, NODES, POLICY)


def test_what_runs_does_not_matter_for_a_verdict() -> None:
    busy = [running(a_job("r").gpus(4), "n:0-3")]
    decided = plan(a_snapshot([a_pool(4)], [a_job("x").gpus(4)], busy), POLICY, 0.0)
    assert not decided.rejections


@pytest.mark.parametrize(
    ("affinity", "anti_affinity", "message"),
    [
        (
            (LabelTerm("emep/runtime", "kubernetes"),),
            (),
            "runtime: no node of pool default runs pods (runtime: kubernetes)",
        ),
        (
            (LabelTerm("zone", "9"), LabelTerm("emep/runtime", "kubernetes")),
            (),
            "runtime: no node of pool default runs pods (runtime: kubernetes) and has labels zone=9",
        ),
        (
            (LabelTerm("zone", "9"),),
            (LabelTerm("emep/runtime", "kubernetes"),),
            "runtime: no node of pool default has an agent that starts jobs (runtime: agent) and has labels "
            "zone=9",
        ),
    ],
)
def test_what_a_runtime_asks_of_nodes_is_told_in_words(
    affinity: tuple[LabelTerm, ...], anti_affinity: tuple[LabelTerm, ...], message: str
) -> None:
    job = a_job("j").having(affinity=affinity, anti_affinity=anti_affinity).build()
    reject = validate_job(job, NODES, POLICY)
    assert reject is not None
    assert (reject.code, reject.field, reject.message) == (RejectCode.LABELS, "runtime", message)
