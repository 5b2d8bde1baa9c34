"""The policy as scheduler, ledger and simulator see it: its sections and the questions asked of them.

Attribute names are the keys of the policy file. Durations are seconds (float), None where the file says
``none``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from emep.policy.sections import (
    ClassRestriction,
    HealthPolicy,
    LeasePolicy,
    LimitsPolicy,
    NodeChecksPolicy,
    PreemptionPolicy,
    ProjectPolicy,
    QueuePolicy,
    RetryPolicy,
    RootsPolicy,
    SimulationPolicy,
    UserPolicy,
)
from emep.wire.suggest import suggest

__all__ = [
    "CLASS_ALIASES",
    "ClassRestriction",
    "HealthPolicy",
    "LeasePolicy",
    "LimitsPolicy",
    "NodeChecksPolicy",
    "Policy",
    "PreemptionPolicy",
    "ProjectPolicy",
    "QueuePolicy",
    "RetryPolicy",
    "RootsPolicy",
    "SimulationPolicy",
    "UserPolicy",
]

CLASS_ALIASES: Mapping[str, str] = {"medium": "normal", "lowest": "low"}
"""Other names under which people know a class."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole policy; ``Policy()`` is empty of queues, ``default_policy()`` is the shipped one."""

    half_life: float = 604800.0
    """Seconds after which consumption weighs half; 0: no decay."""
    entry_charge: float = 60.0
    """A job that starts counts at once, in the order, as if it had run for this many seconds."""
    reservations: int | None = 1
    """Per pool: 1 is EASY, None (``all`` in the file) conservative, 0 no backfill at all."""
    order: str = "submit_time"
    """Among equals: submit_time, shortest or smallest_area."""
    starvation_bound: float | None = None
    """A job that has waited this long goes back to submission order; None: no bound."""
    overtaking: str = "free"
    """Under ``shortest`` and ``smallest_area``: free, or bounded by the longest wait of submission order."""
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    simulation: SimulationPolicy = field(default_factory=SimulationPolicy)
    tiers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tier -> classes, highest first."""
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    node_checks: NodeChecksPolicy = field(default_factory=NodeChecksPolicy)
    xids: Mapping[int, str] = field(default_factory=dict)
    """Xid -> one of ``XID_ACTIONS``, where NVIDIA's own is not wanted."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    limits: LimitsPolicy = field(default_factory=LimitsPolicy)
    roots: RootsPolicy = field(default_factory=RootsPolicy)
    restricted_classes: Mapping[str, ClassRestriction] = field(default_factory=dict)
    node_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topology field -> Kubernetes labels that carry it, the first that a node has counts."""
    classes: Mapping[str, float] = field(default_factory=dict)
    """Class -> value, the scores' factor and the first key of the order."""
    queues: Mapping[str, QueuePolicy] = field(default_factory=dict)
    projects: Mapping[str, ProjectPolicy] = field(default_factory=dict)
    gpu_billing: Mapping[str, float] = field(default_factory=dict)
    named: frozenset[str] = field(default=frozenset(), compare=False)
    """Paths that the file itself named (``queues.merge.pending_ttl``); all else is the default policy."""

    _tier_of: Mapping[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)
    _victims: Mapping[tuple[str, str], frozenset[tuple[str, str]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        tier_of = {name: rank for rank, names in enumerate(self.tiers.values()) for name in names}
        object.__setattr__(self, "_tier_of", tier_of)
        pairs = [(queue, name) for queue, rules in self.queues.items() for name in rules.classes]
        victims = {
            pair: frozenset(other for other in pairs if self._decide_preemption(*pair, *other))
            for pair in pairs
        }
        object.__setattr__(self, "_victims", victims)

    # ---- classes -------------------------------------------------------------------------------------------

    def canonical_class(self, name: str) -> str:
        """The class that ``name`` stands for: itself, or what it is an alias of (medium is normal)."""
        return name if name in self.classes else CLASS_ALIASES.get(name, name)

    def resolve_class(self, queue: str, name: str) -> str | None:
        """The class of a job of ``queue`` that asks for ``name``; None where that queue has no such class."""
        rules = self.queues.get(queue)
        resolved = self.canonical_class(name)
        return resolved if rules is not None and resolved in rules.classes else None

    def class_value(self, name: str) -> float:
        """The value of a class or alias; raises KeyError for an unknown one."""
        return self.classes[self.canonical_class(name)]

    def tier(self, name: str) -> int | None:
        """Rank of the class's tier, 0 the highest; None: in no tier, only its own queue's matrix counts."""
        return self._tier_of.get(self.canonical_class(name))

    def may_use_class(self, name: str, dag_id: str | None, roles: Iterable[str]) -> bool:
        """Whether a job of this DAG, or of a user with these roles, may use the class."""
        rule = self.restricted_classes.get(self.canonical_class(name))
        return rule is None or dag_id in rule.dags or not set(rule.roles).isdisjoint(roles)

    # ---- preemption ----------------------------------------------------------------------------------------

    def may_preempt(self, queue: str, name: str, victim_queue: str, victim_name: str) -> bool:
        """Whether a job of class ``name`` in ``queue`` may evict one of ``victim_name`` in ``victim_queue``.

        This compares classes only. The caller checks that the job is preemptible (its own field, else its
        queue's) and that the queues share the pool.
        """
        victim = (victim_queue, self.canonical_class(victim_name))
        return victim in self._victims.get((queue, self.canonical_class(name)), ())

    def victim_classes(self, queue: str, name: str) -> frozenset[tuple[str, str]]:
        """All (queue, class) that a job of this queue and class may evict."""
        return self._victims.get((queue, self.canonical_class(name)), frozenset())

    def _decide_preemption(self, queue: str, name: str, victim_queue: str, victim_name: str) -> bool:
        rules, victim_rules = self.queues[queue], self.queues[victim_queue]
        if not rules.preempts:
            return False
        if queue == victim_queue:
            return victim_name in rules.preempts.get(name, ())
        if not (self.preemption.across_queues and victim_rules.yields_to_other_queues):
            return False
        if not victim_rules.preempts and not victim_rules.preemptible:
            return False
        own, other = self._tier_of.get(name), self._tier_of.get(victim_name)
        return own is not None and other is not None and own < other

    # ---- entities ------------------------------------------------------------------------------------------

    def project(self, path: str) -> ProjectPolicy | None:
        """The project ``org/team``; None if the file does not name it (weight 1, no limits, open to all)."""
        found: ProjectPolicy | None = None
        level = self.projects
        for part in path.split("/"):
            found = level.get(part)
            if found is None:
                return None
            level = found.projects
        return found

    def project_chain(self, path: str) -> Iterator[tuple[str, ProjectPolicy]]:
        """The project and all above it that the file names, from the top, each with its full path."""
        level, walked = self.projects, ""
        for part in path.split("/"):
            found = level.get(part)
            if found is None:
                return
            walked = f"{walked}/{part}" if walked else part
            yield walked, found
            level = found.projects

    def queue_weight(self, queue: str) -> float:
        """Fair-share weight of a queue, 1 where it is not named."""
        rules = self.queues.get(queue)
        return 1.0 if rules is None else rules.weight

    def project_weight(self, path: str) -> float:
        """Fair-share weight of a project among its siblings, 1 where it is not named."""
        found = self.project(path)
        return 1.0 if found is None else found.weight

    def user_weight(self, project: str, user: str) -> float:
        """Fair-share weight of a user among the users and sub-projects of a project, 1 where not named."""
        found = self.project(project)
        rule = None if found is None else found.users.get(user)
        return 1.0 if rule is None else rule.weight

    def may_charge(self, project: str, user: str) -> bool:
        """Whether the user may charge the project: the nearest ``members`` list upwards decides."""
        for _, rules in reversed(list(self.project_chain(project))):
            if rules.members is not None:
                return user in rules.members
        return True

    def billing(self, gpu_type: str) -> float:
        """What one second of such a GPU is charged.

        The label itself if it is a key; else the longest key that is one of the label's words, so that
        ``H100`` bills ``NVIDIA-H100-80GB-HBM3``; else 1.
        """
        exact = self.gpu_billing.get(gpu_type)
        if exact is not None:
            return exact
        words = gpu_type.upper().replace("_", "-").replace(" ", "-").split("-")
        matches = [key for key in self.gpu_billing if key.upper() in words]
        return self.gpu_billing[max(matches, key=lambda key: (len(key), key))] if matches else 1.0

    # ---- variants ------------------------------------------------------------------------------------------

    def for_simulation(self) -> Policy:
        """The policy as the simulator reads it: queues' time limits count only where the file named them."""
        queues = {
            name: replace(
                rules,
                pending_ttl=rules.pending_ttl if f"queues.{name}.pending_ttl" in self.named else None,
                default_max_duration=(
                    rules.default_max_duration
                    if f"queues.{name}.default_max_duration" in self.named
                    else None
                ),
            )
            for name, rules in self.queues.items()
        }
        return replace(self, queues=queues)

    def with_weights(self, overrides: Mapping[str, float]) -> Policy:
        """The policy with an operator's weights over the file's.

        Keys are entities: ``queue:merge``, ``project:org/team``, ``user:org/team/alice``. Raises ValueError
        for a weight below 0, an unknown queue or another form of key.
        """
        queues, projects = dict(self.queues), self.projects
        for entity, weight in overrides.items():
            kind, _, path = entity.partition(":")
            if weight < 0 or not path:
                raise ValueError(
                    f"{entity}={weight:g}: an entity is queue:NAME, project:PATH or user:PATH/NAME, "
                    "its weight 0 or more"
                )
            if kind == "queue":
                if path not in queues:
                    raise ValueError(f"unknown queue {path!r}: {suggest(path, queues)}")
                queues[path] = replace(queues[path], weight=weight)
            elif kind in ("project", "user"):
                projects = _weigh(projects, path.split("/"), weight, is_user=kind == "user")
            else:
                raise ValueError(f"unknown kind of entity {kind!r}: use queue, project or user")
        return replace(self, queues=queues, projects=projects)

    def describe(self) -> dict[str, object]:
        """The policy as plain JSON values in the file's own shape (durations in seconds)."""
        from emep.policy.describe import describe

        return describe(self)


def _weigh(
    level: Mapping[str, ProjectPolicy], parts: list[str], weight: float, *, is_user: bool
) -> Mapping[str, ProjectPolicy]:
    name, rest = parts[0], parts[1:]
    rules = level.get(name, ProjectPolicy())
    if is_user and len(rest) == 1:
        rules = replace(rules, users={**rules.users, rest[0]: UserPolicy(weight=weight)})
    elif rest:
        rules = replace(rules, projects=_weigh(rules.projects, rest, weight, is_user=is_user))
    elif is_user:
        raise ValueError(f"user:{name}: a user is named with the project, user:PROJECT/NAME")
    else:
        rules = replace(rules, weight=weight)
    return {**level, name: rules}
