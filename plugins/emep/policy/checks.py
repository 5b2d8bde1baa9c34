"""Checks between the keys of a policy: tiers, preemption without cycles, guarantees within limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from emep.policy.errors import Path
from emep.policy.model import Policy, ProjectPolicy
from emep.wire.units import count_of

if TYPE_CHECKING:
    from emep.policy.reading import Value

Pair = tuple[str, str]


def check_policy(policy: Policy, root: Value) -> None:
    """Raise PolicyError (through ``root``, which knows the source) for a policy that contradicts itself."""
    _check_tiers(policy, root)
    _check_preemption_cycles(policy, root)
    for name, rules in policy.queues.items():
        _check_guarantee(rules.guaranteed_gpus, rules.max_gpus, ("queues", name), root)
        _check_guarantee_pools(policy, name, root)
    for name, project in policy.projects.items():
        _check_project(project, ("projects", name), root)
    _check_order_of_times(policy, root)


def _check_tiers(policy: Policy, root: Value) -> None:
    seen: dict[str, str] = {}
    for tier, names in policy.tiers.items():
        for index, name in enumerate(names):
            if name in seen:
                raise root.at(None, "tiers", tier, index).error(
                    f"class {name!r} is in tier {seen[name]} already: take it out of one of them"
                )
            seen[name] = tier


def _check_preemption_cycles(policy: Policy, root: Value) -> None:
    """Refuse cycles of preemption (matrices and tiers together): no class may evict itself through others."""
    done: set[Pair] = set()
    for queue, rules in policy.queues.items():
        for name in rules.classes:
            cycle = _find_cycle(policy, (queue, name), [], done)
            if cycle:
                raise _cycle_error(policy, cycle, root)


def _find_cycle(policy: Policy, pair: Pair, walked: list[Pair], done: set[Pair]) -> list[Pair] | None:
    if pair in walked:
        return walked[walked.index(pair) :]
    if pair in done:
        return None
    for victim in sorted(policy.victim_classes(*pair)):
        cycle = _find_cycle(policy, victim, [*walked, pair], done)
        if cycle:
            return cycle
    done.add(pair)
    return None


def _cycle_error(policy: Policy, cycle: list[Pair], root: Value) -> Exception:
    """The error, at a matrix entry of the cycle that goes up or level: tiers alone only ever go down."""
    ring = [*cycle, cycle[0]]
    steps = [step for step in pairwise(ring) if step[0][0] == step[1][0]]
    (queue, name), (_, victim) = min(
        steps, key=lambda step: policy.classes[step[0][1]] - policy.classes[step[1][1]]
    )
    index = policy.queues[queue].preempts[name].index(victim)
    words = " preempts ".join(f"{owner}/{rank}" for owner, rank in ring)
    return root.at(None, "queues", queue, "preempts", name, index).error(
        f"preemption goes round in a circle ({words}): take {victim!r} out of this list"
    )


def _check_guarantee(guaranteed: Mapping[str, int], limit: int | None, path: Path, root: Value) -> None:
    total = sum(guaranteed.values())
    if limit is not None and total > limit:
        raise root.at(None, *path, "guaranteed_gpus").error(
            f"guarantees {count_of(total, 'GPU')} but max_gpus is {limit}: "
            "raise max_gpus or lower the guarantee"
        )


def _check_guarantee_pools(policy: Policy, name: str, root: Value) -> None:
    rules = policy.queues[name]
    for pool in rules.guaranteed_gpus:
        if rules.pools is not None and pool not in rules.pools:
            raise root.at(None, "queues", name, "guaranteed_gpus", pool).error(
                f"guarantees GPUs in pool {pool!r}, which is not the queue's: add it to queues.{name}.pools"
            )


def _check_project(rules: ProjectPolicy, path: Path, root: Value) -> None:
    _check_guarantee(rules.guaranteed_gpus, rules.max_gpus, path, root)
    below = sum(sum(child.guaranteed_gpus.values()) for child in _descendants(rules))
    if rules.max_gpus is not None and below > rules.max_gpus:
        raise root.at(None, *path, "max_gpus").error(
            f"is {rules.max_gpus}, but projects below are guaranteed {count_of(below, 'GPU')}: "
            "raise it or lower theirs"
        )
    for name, child in rules.projects.items():
        if name in rules.users:
            raise root.at(None, *path, "projects", name).error(
                "is also the name of a user of the same project: rename one, their shares are siblings"
            )
        _check_project(child, (*path, "projects", name), root)


def _descendants(rules: ProjectPolicy) -> Iterator[ProjectPolicy]:
    for child in rules.projects.values():
        yield child
        yield from _descendants(child)


def _check_order_of_times(policy: Policy, root: Value) -> None:
    if policy.lease.expiry <= policy.lease.heartbeat:
        raise root.at(None, "lease", "expiry").error(
            f"is {policy.lease.expiry:g} s, not more than a heartbeat of {policy.lease.heartbeat:g} s: "
            "every lease would be lost, make it several heartbeats"
        )
    if policy.retries.max_backoff < policy.retries.backoff:
        raise root.at(None, "retries", "max_backoff").error(
            f"is {policy.retries.max_backoff:g} s, less than backoff ({policy.retries.backoff:g} s): raise it"
        )
