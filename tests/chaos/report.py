"""The report: what was killed, what became of the jobs, what was lost, which invariants held."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

from tests.chaos.harness import Harness
from tests.chaos.invariants import Violation, presences
from tests.chaos.model import Evidence

SHOWN = 10
"""Violations of one invariant that are printed."""


def lost_work(evidence: Evidence) -> dict[str, float]:
    """Steps that were done again because they came after the last checkpoint, and the seconds they took."""
    done: dict[tuple[str, int], int] = Counter()
    again, seconds, all_seconds = 0, 0.0, 0.0
    for line in evidence.steps:
        if line.kind != "step":
            continue
        all_seconds += line.seconds
        if done[(line.log, line.step)]:
            again += 1
            seconds += line.seconds
        done[(line.log, line.step)] += 1
    return {
        "steps_done": sum(done.values()),
        "steps_done_again": again,
        "seconds_done_again": round(seconds, 1),
        "step_seconds": round(all_seconds, 1),
    }


def make_report(
    harness: Harness, evidence: Evidence, violations: dict[str, list[Violation]], seconds: float
) -> dict[str, Any]:
    """Everything as JSON values."""
    settings = harness.settings
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for event in evidence.events:
        if event.event in ("requeued", "yielded", "allocation_lost", "told_to_yield", "failed", "dead"):
            reasons[event.event][event.code] += 1
    return {
        "settings": {key: str(value) for key, value in asdict(settings).items()},
        "seconds": round(seconds, 1),
        "kills": dict(Counter(kill.kind for kill in harness.killed)),
        "kills_total": len(harness.killed),
        "start_up_seconds": {
            service.name: round(service.start_up, 1) for service in harness.services.all.values()
        },
        "outages": [round(outage.end - outage.start, 1) for outage in evidence.outages],
        "done": dict(harness.counted),
        "jobs": dict(Counter(job.state for job in evidence.jobs)),
        "epochs": sum(job.epoch for job in evidence.jobs),
        "requeues": sum(job.requeues for job in evidence.jobs),
        "preemptions": sum(job.preemptions for job in evidence.jobs),
        "reasons": {event: dict(counter) for event, counter in reasons.items()},
        "gpu_presences": len(presences(evidence)),
        "events": len(evidence.events),
        "gpu_seconds_charged": round(sum(row.gpu_seconds for row in evidence.usage), 1),
        "lost_work": lost_work(evidence),
        "probes": dict(Counter(str(probe.status) for probe in evidence.probes)),
        "invariants": {name: [asdict(entry) for entry in found] for name, found in violations.items()},
    }


def in_words(report: dict[str, Any]) -> str:
    """The report for people."""

    def listed(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(values.items())) or "none"

    lost = report["lost_work"]
    rows = [
        f"kills     {report['kills_total']} in {report['seconds']:.0f} s: {listed(report['kills'])}",
        f"start-up  {listed(report['start_up_seconds'])} (s)",
        f"outages   {', '.join(f'{s:g} s' for s in report['outages']) or 'none'}",
        f"done      {listed(report['done'])}",
        f"jobs      {listed(report['jobs'])}; {report['epochs']} runs, {report['requeues']} requeues, "
        f"{report['preemptions']} preemptions",
        *(f"          {event}: {listed(counts)}" for event, counts in sorted(report["reasons"].items())),
        f"lost work {lost['steps_done_again']} of {lost['steps_done']} steps were done again "
        f"({lost['seconds_done_again']} of {lost['step_seconds']} s)",
        f"probes    {listed(report['probes'])} (old epochs)",
        f"audit     {report['events']} events, {report['gpu_presences']} processes on GPUs, "
        f"{report['gpu_seconds_charged']} GPU-seconds charged",
        "invariants",
    ]
    for name, found in report["invariants"].items():
        rows.append(f"  {'BROKEN' if found else 'holds '}  {name}")
        for violation in found[:SHOWN]:
            rows.append(f"      {violation['sentence']}")
            rows.extend(f"        {str(line)[:400]}" for line in violation["lines"])
        if len(found) > SHOWN:
            rows.append(f"      and {len(found) - SHOWN} more (--report FILE has them all)")
    return "\n".join(rows)
