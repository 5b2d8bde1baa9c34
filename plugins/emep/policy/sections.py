"""The sections of a policy as frozen values, each with its defaults.

Attribute names are the keys of the policy file. Durations are seconds (float), None where the file says
``none``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """When running work may be asked to make room."""

    grace_period: float = 120.0
    """Seconds a victim has to checkpoint before it is killed."""
    min_runtime: float = 0.0
    """A job that has run for less is no victim."""
    across_queues: bool = True
    """Whether tiers apply between queues that share a pool; False: each queue preempts within itself only."""


@dataclass(frozen=True, slots=True)
class SimulationPolicy:
    """What preemption costs in the simulator."""

    checkpoint_time: float = 0.0
    restart_time: float = 0.0


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How often leases are renewed, and how long a holder may be silent."""

    heartbeat: float = 10.0
    expiry: float = 60.0
    start_deadline: float = 600.0
    max_silence: float = 600.0


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """How many reports make a GPU unhealthy, and healthy again."""

    report_every: float = 10.0
    failed_checks: int = 3
    good_checks: int = 3


XID_ACTIONS = ("ignore", "restart_app", "reset", "reboot", "check_row_remap")
"""The actions that a policy may set for an Xid; the agent's own table applies to all others."""


@dataclass(frozen=True, slots=True)
class NodeChecksPolicy:
    """When a node that fails its jobs is taken out of service, and how it comes back."""

    quick_failures: int = 3
    """Different jobs in a row that fail quickly on a node take it out of service; 0: never."""
    within: float = 60.0
    """A job that ends by a failure within so many seconds of its grant has failed quickly."""
    cool_down: float = 300.0
    """Seconds before a node that was taken out is tried again, with one job."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of a task, and requeues for infrastructure, which are counted apart."""

    max: int = 3
    backoff: float = 30.0
    max_backoff: float = 1800.0
    max_infrastructure: int = 5


@dataclass(frozen=True, slots=True)
class LimitsPolicy:
    """What one user may ask of the control plane."""

    pending_jobs: int = 10_000
    """Jobs that wait at the same time; more are refused (429) until some have started or ended."""


@dataclass(frozen=True, slots=True)
class RootsPolicy:
    """Folders that jobs may name beyond their own run's: absolute paths, links not resolved."""

    read: tuple[str, ...] = ()
    """What every job may read: models, tasks and recipes that teams share."""
    write: tuple[str, ...] = ()
    """What every job may write, and so read."""


@dataclass(frozen=True, slots=True)
class ClassRestriction:
    """Who may use a restricted class: jobs of a listed DAG, and users with a listed role."""

    dags: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """One queue: its classes, which of them preempt which, and defaults of its jobs."""

    weight: float = 1.0
    classes: tuple[str, ...] = ("high", "normal", "low")
    """High to low."""
    preempts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Class -> classes of this queue it may preempt; empty: preemption is none, also across queues."""
    preemptible: bool = False
    """Whether its jobs may be victims unless they say otherwise themselves."""
    yields_to_other_queues: bool = True
    """Whether its preemptible jobs may be victims of other queues; serving is not preempted for training."""
    pending_ttl: float | None = None
    """Pending longer than this since it last entered the queue: dead letter. None: never."""
    default_max_duration: float | None = None
    """For a job that names none; None: endless."""
    pools: tuple[str, ...] | None = ("default",)
    """Pools it may use; None (``all`` in the file): every pool."""
    placement: str = "pack"
    max_gpus: int | None = None
    """Hard limit of GPUs its jobs hold together."""
    guaranteed_gpus: Mapping[str, int] = field(default_factory=dict)
    """Pool -> GPUs it can always have back from borrowers."""

    @property
    def default_class(self) -> str:
        """The class of a job that names none: normal where there is one, else the lowest."""
        return "normal" if "normal" in self.classes else self.classes[-1]


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """One user of a project."""

    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ProjectPolicy:
    """One project; its users and sub-projects are siblings of each other."""

    weight: float = 1.0
    max_gpus: int | None = None
    guaranteed_gpus: Mapping[str, int] = field(default_factory=dict)
    members: tuple[str, ...] | None = None
    """Users who may charge it and its sub-projects; None: those who may charge its parent."""
    users: Mapping[str, UserPolicy] = field(default_factory=dict)
    projects: Mapping[str, ProjectPolicy] = field(default_factory=dict)
