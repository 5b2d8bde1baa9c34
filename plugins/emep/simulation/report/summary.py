"""``summary.json``: the figures of one simulation, and the differences between two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from emep.policy.model import Policy
from emep.simulation.run.recording import Outcome, Recording, State

Summary = dict[str, Any]

FIGURES = (
    "jobs", "makespan", "gpu_utilization", "mean_wait", "p50_wait", "p95_wait", "max_wait", "mean_jct",
    "p95_jct", "mean_bounded_slowdown", "preemptions", "work_lost_gpu_seconds", "fairness_jain",
)  # fmt: skip
"""The figures of the whole simulation, in the order in which they are shown."""

_SHORTEST_FOR_SLOWDOWN = 10.0
"""Bounded slowdown: shorter jobs count as this long, or one of a second would outweigh all others."""


def summarize(recording: Recording, policy: Policy) -> Summary:
    """All figures; a mean of nothing is None.

    Makespan: first submission to last end. Waits are of the jobs that started, completion times (JCT,
    submission to end) and slowdowns of those that completed or failed. Percentiles interpolate linearly.
    """
    outcomes = recording.outcomes
    first = min(outcome.spec.job.submit_time for outcome in outcomes)
    last = max((outcome.end for outcome in outcomes if outcome.end is not None), default=first)
    held = sum(outcome.gpu_seconds for outcome in outcomes)
    capacity = recording.total_gpus * (last - first)
    summary = {
        "jobs": len(outcomes),
        "makespan": last - first,
        "gpu_utilization": held / capacity if capacity > 0 else None,
        **_figures(outcomes),
        "fairness_jain": jain(_hours_by_weight(outcomes, policy)),
        "states": _count(outcomes),
        "gpu_hours": held / 3600.0,
        "decisions": recording.decisions,
        "projects": _grouped(outcomes, lambda outcome: outcome.spec.job.project),
        "queues": _grouped(outcomes, lambda outcome: outcome.spec.job.queue),
    }
    return {key: _rounded(summary[key]) for key in (*FIGURES, *(k for k in summary if k not in FIGURES))}


def compare(first: Summary, second: Summary) -> Summary:
    """For every figure that both have as a number: second minus first, and second over first."""
    differences: Summary = {}
    for key in FIGURES:
        one, other = first[key], second[key]
        if isinstance(one, (int, float)) and isinstance(other, (int, float)):
            differences[key] = {
                "difference": _rounded(other - one),
                "ratio": _rounded(other / one) if one else None,
            }
    return differences


def jain(values: Sequence[float]) -> float | None:
    """Jain's index ``(sum x)^2 / (n sum x^2)``: 1 where all are equal, 1/n where one has everything.

    R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984. None if all have nothing.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of an ascending sequence lies, between neighbours in proportion."""
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _figures(outcomes: Iterable[Outcome]) -> Summary:
    outcomes = list(outcomes)
    waits = sorted(outcome.wait for outcome in outcomes if outcome.first_start is not None)
    ended = [
        (outcome.end - outcome.spec.job.submit_time, outcome.spec.duration)
        for outcome in outcomes
        if outcome.end is not None and outcome.state in (State.COMPLETED, State.FAILED)
    ]
    times = sorted(jct for jct, _ in ended)
    return {
        "mean_wait": _mean(waits),
        "p50_wait": percentile(waits, 0.5),
        "p95_wait": percentile(waits, 0.95),
        "max_wait": waits[-1] if waits else None,
        "mean_jct": _mean(times),
        "p95_jct": percentile(times, 0.95),
        "mean_bounded_slowdown": _mean(
            [max(1.0, jct / max(duration, _SHORTEST_FOR_SLOWDOWN)) for jct, duration in ended]
        ),
        "preemptions": sum(outcome.preemptions for outcome in outcomes),
        "work_lost_gpu_seconds": sum(outcome.work_lost for outcome in outcomes),
    }


def _grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> Mapping[str, Summary]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return {
        name: {
            "jobs": len(members),
            "gpu_hours": sum(outcome.gpu_seconds for outcome in members) / 3600.0,
            **_figures(members),
        }
        for name, members in sorted(groups.items())
    }


def _hours_by_weight(outcomes: Iterable[Outcome], policy: Policy) -> list[float]:
    """GPU-hours over weight of every project that asked for anything; weight 0 has no claim to equality."""
    hours: dict[str, float] = defaultdict(float)
    for outcome in outcomes:
        hours[outcome.spec.job.project] += outcome.gpu_seconds / 3600.0
    weights = {name: policy.project_weight(name) for name in hours}
    return [hours[name] / weights[name] for name in sorted(hours) if weights[name] > 0]


def _count(outcomes: Iterable[Outcome]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.state.value] = counts.get(outcome.state.value, 0) + 1
    return dict(sorted(counts.items()))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rounded(value: Any) -> Any:
    """Microseconds are what virtual time has; further digits would only be noise of sums."""
    if isinstance(value, float):
        return int(value) if value == int(value) and abs(value) < 2**53 else round(value, 6)
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value
