"""The scheduling core's input and output as immutable values.

Units everywhere: seconds (float) for times and durations, bytes (int) for memory, whole GPUs for counts.
Times are seconds since an epoch of the caller's choice; the core only ever subtracts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class GpuState(str, Enum):
    """Whether new work may be placed on a GPU."""

    HEALTHY = "healthy"
    """Reports are good: eligible."""
    UNHEALTHY = "unhealthy"
    """Three checks failed in a row: no new work."""
    DRAINING = "draining"
    """An operator asked for it; what runs may finish."""
    DRAINED = "drained"
    """Asked for, and nothing runs on it any more."""


class GpuId(NamedTuple):
    """A GPU by its node's name and its index there; printed as ``node:index``."""

    node: str
    index: int  # type: ignore[assignment]  # a field; it hides a method of tuples that GpuId does not need

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (or MIG slice that its node advertises as a GPU of its own type)."""

    index: int
    gpu_type: str = ""
    memory: int = 0
    nvlink_group: str | None = None
    """Name of its NVLink group, unique in the cluster; it may be part of a node, a node, or span nodes."""
    state: GpuState = GpuState.HEALTHY
    foreign: bool = False
    """Used by a process outside EMEP: not EMEP's to give."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs, CPUs and memory, in one pool, one rack and one block."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    pool: str = "default"
    rack: str = ""
    block: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu: float = 0.0
    """CPU cores offered to jobs; 0 means unknown, which limits nothing."""
    memory: int = 0
    """Host memory offered to jobs; 0 means unknown, which limits nothing."""
    network_bandwidth_gbps: float = 0.0
    schedulable: bool = True
    """False when the node itself is lost, drained or out of service: nothing new is placed on any of it."""


RUNTIME_LABEL, KUBERNETES = "emep/runtime", "kubernetes"
"""Label of nodes whose work Kubernetes starts: pods are placed there only, and agents' work never is. A job's
runtime adds the term; people never write it."""


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """One affinity or anti-affinity term: node label ``key`` equals ``value``."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Job:
    """One request for GPUs, all at once; fields and defaults are those of the contract."""

    id: str
    submit_time: float
    """When it first entered the queue; kept through preemption."""
    queue: str = "merge"
    priority: str = "normal"
    project: str = "default"
    user: str = ""
    gpu_count: int = 1
    node_count: int | None = None
    """Spread evenly over exactly this many nodes; None leaves it to placement."""
    cpu: float = 1.0
    memory: int = 2 * 1024**3
    gpu_memory_min: int = 0
    gpu_type: str = ""
    nvlink_required: bool = False
    topology_required: str | None = None
    """nvlink, node, rack or block: a level that must hold all of the job."""
    topology_preferred: str | None = "rack"
    affinity: tuple[LabelTerm, ...] = ()
    anti_affinity: tuple[LabelTerm, ...] = ()
    max_duration: float | None = None
    """Hard limit of each run; None: endless (inference), or the queue's default where that applies."""
    preemptible: bool | None = None
    """None: the queue's default."""
    checkpoint_interval: float | None = None
    """Seconds between checkpoints of its own; None: it saves only when told, and then loses nothing."""
    placement: str | None = None
    """pack or spread; None: the queue's default."""
    job_type: str = ""
    preempted: bool = False
    queued_at: float | None = None
    """When it last entered the queue; None: ``submit_time``."""
    not_before: float = 0.0
    """A backoff: not considered earlier than this."""
    waits_for: str = ""
    """What ``not_before`` waits for; empty: it backs off after a failure of the infrastructure."""
    estimated_duration: float | None = None
    """What the same (user, job_type, GPUs) took before; for order and estimates only, never for killing."""
    avoid_nodes: tuple[str, ...] = ()
    """Nodes that it failed on: taken only where it fits on no others now."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """GPUs held by one job at this moment."""

    job: Job
    gpus: tuple[GpuId, ...]
    start_time: float
    nodes: tuple[str, ...] = ()
    """Nodes of the job, for CPU jobs too; with GPUs, the nodes of ``gpus`` in order of first appearance."""
    last_checkpoint: float | None = None
    """When the last complete checkpoint was taken in this run; None: none yet (``start_time`` counts)."""
    yielding: bool = False
    """Told to checkpoint and exit: its GPUs are coming free."""
    held_for: str | None = None
    """The job that the GPUs of a yielding allocation are held for."""
    releases_at: float | None = None
    """When a yielding allocation is killed at the latest."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """Decayed consumption of one leaf entity in one queue as of the snapshot's now: billed GPU-seconds."""

    queue: str
    project: str
    user: str
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs promised to a pending job whose victims are on their way out."""

    job_id: str
    gpus: tuple[GpuId, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable input of ``plan``. Callers may cache indices derived from it."""

    nodes: tuple[Node, ...]
    pending: tuple[Job, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    usage: tuple[UsageRecord, ...] = ()
    """Consumption of what has ended and of what runs, up to ``now``."""
    holds: tuple[Hold, ...] = ()
    """GPUs promised by earlier plans (``Plan.holds``) to jobs that are still pending: kept from
    other jobs until the job starts, also after its victims have gone. Without it only
    ``Allocation.held_for`` holds GPUs, and only while the victim is still yielding."""


class ReasonCode(str, Enum):
    """Stable codes of what blocks a job; texts carry the numbers."""

    INSUFFICIENT_GPUS = "insufficient_gpus"
    NO_FREE_NVLINK_GROUP = "no_free_nvlink_group"
    NO_TOPOLOGY_DOMAIN = "no_topology_domain"
    BEHIND_RESERVATION = "behind_reservation"
    WAITING_FOR_PREEMPTION = "waiting_for_preemption"
    QUOTA_EXCEEDED = "quota_exceeded"
    UNHEALTHY_GPUS = "unhealthy_gpus"
    QUEUE_CLOSED = "queue_closed"
    INSUFFICIENT_CPU = "insufficient_cpu"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    BACKING_OFF = "backing_off"


class RejectCode(str, Enum):
    """Why a job can never run; the message names the limit and the numbers."""

    TOO_MANY_GPUS = "too_many_gpus"
    NVLINK_GROUP_TOO_SMALL = "nvlink_group_too_small"
    TOPOLOGY_TOO_SMALL = "topology_too_small"
    GPU_MEMORY = "gpu_memory"
    GPU_TYPE = "gpu_type"
    NOT_DIVISIBLE = "not_divisible"
    UNKNOWN_CLASS = "unknown_class"
    UNKNOWN_QUEUE = "unknown_queue"
    OVER_QUOTA = "over_quota"
    CPU = "cpu"
    MEMORY = "memory"
    LABELS = "labels"
    CLASS_NOT_ALLOWED = "class_not_allowed"
    """The policy keeps the class for other DAGs and roles (found by the ledger, which knows who asks)."""
    NOT_A_MEMBER = "not_a_member"
    """The project lists its members (found by the ledger)."""


Verdict = tuple[RejectCode, str, str]
"""Why a job can never run: code, message, field of the job."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that blocks a job."""

    code: ReasonCode
    text: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job goes: GPUs in rank order, and its nodes (for CPU jobs the one node, with no GPUs)."""

    gpus: tuple[GpuId, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Give these GPUs to this job now."""

    job_id: str
    placement: Placement
    reason: str
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class Preempt:
    """Tell this running job to yield; its GPUs are held for ``for_job``."""

    job_id: str
    for_job: str
    reason: str
    code: str = "priority"
    """priority or reclaim (a guarantee taken back)."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The earliest time, and the GPUs, at which a waiting job will fit."""

    job_id: str
    at: float
    placement: Placement


@dataclass(frozen=True, slots=True)
class Reject:
    """This job can never run on this cluster under this policy."""

    job_id: str
    code: RejectCode
    message: str
    field: str


@dataclass(frozen=True, slots=True)
class ScoreTerms:
    """The number shown to people, with every term of it."""

    class_value: float
    deficit: float
    score: float
    order_key: tuple[str, ...]
    """The full order key in words, most significant first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pending job was not started: all that blocks it, its place, and when it may start."""

    job_id: str
    position: int
    reasons: tuple[Reason, ...]
    score: ScoreTerms
    estimated_start: float | None
    """None: unknown or never; ``estimate_text`` says which."""
    estimate_text: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions of one cycle, to be carried out in this order: preemptions, then starts."""

    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    rejections: tuple[Reject, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    holds: tuple[Hold, ...] = ()
    """What is promised to preemptors after this plan; to be handed back as ``Snapshot.holds`` next time."""
