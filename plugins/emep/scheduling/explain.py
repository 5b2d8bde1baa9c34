"""Why a job waits: all that blocks it, its place, every term of its score, and when it may start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emep.policy import Policy
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import Job, Reason, ReasonCode, ScoreTerms, Waiting
from emep.scheduling.order import is_starving, waited
from emep.scheduling.quota import Limit
from emep.units import format_duration

if TYPE_CHECKING:
    from emep.scheduling.plan import Cycle


@dataclass(frozen=True, slots=True)
class Blocked:
    """A job that was looked at and not started."""

    job: Job
    backing_off: bool = False
    quota: tuple[Limit, ...] = ()
    holding: bool = False
    """Its GPUs are held for it; it waits for victims to go."""
    behind: str | None = None
    """FCFS: the job that nobody in its pools may pass."""


def score_of(job: Job, policy: Policy, tree: FairTree, now: float) -> ScoreTerms:
    """``value(class) x clamp(1 + deficit, 0.25, 2)`` with the project's deficit, and the full order key in words."""
    value = policy.class_value(job.priority)
    deficit = tree.project(job.queue, job.project).deficit()
    key = [f"class {policy.canonical_class(job.priority)} = {value:g}"]
    key += [f"{label} deficit {_signed(amount)}" for label, amount in tree.levels(job)]
    if policy.order != "submit_time":
        if is_starving(job, policy, now):
            key.append(f"starving: waited {format_duration(waited(job, now))}, back in submission order")
        else:
            key.append(f"{policy.order} first")
    key += [f"submitted {job.submit_time:g}", f"job id {job.id}"]
    return ScoreTerms(value, deficit, value * min(2.0, max(0.25, 1.0 + deficit)), tuple(key))


def _signed(value: float) -> str:
    return f"{value:+.4f}"


class Explainer:
    """Explains what one cycle left waiting."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle

    def explain_all(self) -> tuple[Waiting, ...]:
        """One answer per waiting job, in order."""
        cycle = self._cycle
        return tuple(
            Waiting(
                blocked.job.id,
                position,
                (Reason(ReasonCode.INSUFFICIENT_GPUS, "todo"),),
                score_of(blocked.job, cycle.policy, cycle.tree, cycle.now),
                None,
            )
            for position, blocked in enumerate(cycle.blocked, start=1)
        )
