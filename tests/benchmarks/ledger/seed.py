"""A loaded ledger, written straight into the tables: the loads of the core's benchmarks as rows."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Engine, insert, text
from tests.benchmarks.scheduling.load import snapshot

from emep.ledger.store.ids import allocation_id, job_ids, lease_token, token_digest
from emep.ledger.store.tables import Allocation, AllocationGpu, AllocationNode, Clock, Gpu, Job, Node, Usage
from emep.scheduling import model

FAR = 1e7
"""Seconds: nothing seeded falls silent or runs out while it is measured."""
SECRET = b"k" * 32
"""The key of ``tests.builders.ledger.make_settings``: leases of seeded allocations are valid."""


def seed(engine: Engine, nodes: int, pending: int, *, busy: float = 0.9, projects: int = 200) -> list[str]:
    """Write nodes, running jobs and pending ones; ids of the allocations that run."""
    load, now = snapshot(nodes, pending, busy=busy, projects=projects), time.time()
    jobs: list[dict[str, Any]] = []
    running: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = []
    for allocation in load.allocations:
        job_id = job_ids.new(now - 7200)
        name = allocation_id(job_id, 1)
        values = {"state": "running", "epoch": 1, "allocation_id": name, "started_at": now - 600}
        jobs.append(_job(allocation.job, job_id, now - 7200, **values))
        token = lease_token(SECRET, name, 1)
        running.append(_allocation(allocation, name, job_id, now + allocation.start_time, token))
        held += [{"node": gpu.node, "gpu_index": gpu.index, "allocation_id": name} for gpu in allocation.gpus]
        places += [
            {"allocation_id": name, "node": node, "node_rank": rank, "started": True}
            for rank, node in enumerate(allocation.nodes)
        ]
    for job in load.pending:
        jobs.append(_job(job, job_ids.new(now + job.submit_time), now + job.submit_time))
    usage = [_usage(record, now) for record in load.usage]
    gpus = [_gpu(node, gpu) for node in load.nodes for gpu in node.gpus]
    rows = [(Node, [_node(node, now) for node in load.nodes]), (Gpu, gpus), (Job, jobs)]
    rows += [(Allocation, running), (AllocationGpu, held), (AllocationNode, places), (Usage, usage)]
    with engine.begin() as connection:
        connection.execute(insert(Clock), {"id": 1, "seq": 0, "dirty": 1, "ticked_at": now})
        for table, values_of in rows:
            if values_of:
                connection.execute(insert(table), values_of)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))
    return [row["id"] for row in running]


def _node(node: model.Node, now: float) -> dict[str, Any]:
    return {
        "name": node.name,
        "pool": node.pool,
        "rack": node.rack,
        "block": node.block,
        "labels": dict(node.labels),
        "cpu": node.cpu,
        "memory": node.memory,
        "network_bandwidth_gbps": node.network_bandwidth_gbps,
        "registered_at": now,
        "last_report_at": now + FAR,
        "last_check_at": now + FAR,
    }


def _gpu(node: model.Node, gpu: model.Gpu) -> dict[str, Any]:
    return {
        "node": node.name,
        "gpu_index": gpu.index,
        "uuid": f"GPU-{node.name}-{gpu.index}",
        "gpu_type": gpu.gpu_type,
        "memory": gpu.memory,
        "nvlink_group": gpu.nvlink_group,
        "state": gpu.state.value,
    }


def _job(job: model.Job, job_id: str, submitted: float, **values: Any) -> dict[str, Any]:
    row = {
        "id": job_id,
        "state": "pending",
        "epoch": 0,
        "submitted_by": "seed",
        "idempotency_key": f"seed-{job_id}",
        "queue": job.queue,
        "priority": job.priority,
        "project": job.project,
        "user_name": job.user,
        "gpu_count": job.gpu_count,
        "node_count": job.node_count,
        "cpu": job.cpu,
        "memory": job.memory,
        "gpu_memory_min": job.gpu_memory_min,
        "gpu_type": job.gpu_type,
        "nvlink_required": job.nvlink_required,
        "topology": {"preferred": "rack"},
        "max_duration": job.max_duration,
        "runtime": "agent",
        "spec": {"engine": "merge", "input": {}},
        "trace_id": "",
        "experiment_id": "",
        "job_type": "merge",
        "checkpoint_key": job_id,
        "submitted_at": submitted,
        "queued_at": submitted,
        "allocation_id": None,
        "started_at": None,
    }
    return {**row, **values}


def _allocation(
    allocation: model.Allocation, name: str, job_id: str, start: float, token: str
) -> dict[str, Any]:
    return {
        "id": name,
        "job_id": job_id,
        "epoch": 1,
        "state": "active",
        "token_sha256": token_digest(token),
        "runtime": "agent",
        "gpus": [[gpu.node, gpu.index, f"GPU-{gpu.node}-{gpu.index}"] for gpu in allocation.gpus],
        "nodes": list(allocation.nodes),
        "gpu_count": len(allocation.gpus),
        "billing_rate": float(len(allocation.gpus)),
        "granted_at": start,
        "first_heartbeat_at": start,
        "heartbeat_at": start,
        "deadline": start + FAR,
    }


def _usage(record: model.UsageRecord, now: float) -> dict[str, Any]:
    return {
        "queue": record.queue,
        "project": record.project,
        "user_name": record.user,
        "gpu_seconds": record.gpu_seconds,
        "billed_gpu_seconds": record.gpu_seconds,
        "decayed": record.gpu_seconds,
        "decayed_at": now,
    }
