"""The number shown to people, every term of it, and the order key in words."""

from __future__ import annotations

from emep.policy.model import Policy
from emep.scheduling.durations import is_starving, waited
from emep.scheduling.fair_share import FairTree
from emep.scheduling.model import Job, ScoreTerms
from emep.wire.units import format_duration


class Scores:
    """``value(class) x clamp(1 + deficit, 0.25, 2)`` with the project's deficit, as consumption stands."""

    def __init__(self, policy: Policy, tree: FairTree, now: float) -> None:
        self._policy, self._tree, self._now = policy, tree, now
        self._known: dict[tuple[str, str, str, str], tuple[float, float, float, tuple[str, ...]]] = {}

    def of(self, job: Job) -> ScoreTerms:
        """The terms of one job; what jobs of one class and user share is worked out once."""
        key = (job.priority, job.queue, job.project, job.user)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._shared(job)
        value, deficit, score, words = found
        return ScoreTerms(
            value,
            deficit,
            score,
            (*words, *self._among_equals(job), f"submitted {job.submit_time:.17g}", f"job id {job.id}"),
        )

    def _shared(self, job: Job) -> tuple[float, float, float, tuple[str, ...]]:
        policy, tree = self._policy, self._tree
        value = policy.class_value(job.priority)
        deficit = tree.deficit(tree.project(job.queue, job.project))
        words = (f"class {policy.canonical_class(job.priority)} = {value:g}", *tree.levels_in_words(job))
        return value, deficit, value * min(2.0, max(0.25, 1.0 + deficit)), words

    def _among_equals(self, job: Job) -> tuple[str, ...]:
        order = self._policy.order
        if order == "submit_time":
            return ()
        if is_starving(job, self._policy, self._now):
            return (f"starving: waited {format_duration(waited(job, self._now))}, back in submission order",)
        return ("shortest first" if order == "shortest" else "smallest area first",)
