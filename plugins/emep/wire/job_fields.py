"""The fields of a job that a person chooses: one list for requests, operators, forms and the ledger.

It is plain data, because every DAG file that Airflow parses needs it: the pydantic documents take a fifth of
a second to import.
"""

from __future__ import annotations

JOB_FIELDS = (
    "queue",
    "priority",
    "project",
    "user",
    "gpu_count",
    "node_count",
    "gpu_per_node",
    "cpu",
    "memory",
    "gpu_memory_min",
    "gpu_type",
    "nvlink_required",
    "topology",
    "max_duration",
    "preemptible",
    "checkpoint_interval",
    "placement",
    "runtime",
    "experiment_id",
    "trace_id",
    "job_type",
)
"""Fields of ``JobRequest`` (``emep.wire.jobs``), in the order in which they are documented."""
NOT_STORED = frozenset({"gpu_per_node"})
"""Fields that have no column of their own: ``gpu_count`` and ``node_count`` say the same."""
DESCRIPTIVE = frozenset({"trace_id"})
"""Fields that may differ when the same request is sent again."""
