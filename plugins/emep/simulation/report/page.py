"""``report.html``: one page that opens offline, in light and dark, without any script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from emep.policy.model import Policy
from emep.scheduling.model import Node
from emep.simulation.report.charts import Curve, average_by_bin, chart
from emep.simulation.report.gantt import gantt
from emep.simulation.report.summary import FIGURES, Summary
from emep.simulation.run.recording import Recording
from emep.wire.units import format_duration

_BINS = 480
_MOST_PROJECTS = 9

LABELS = {
    "jobs": "Jobs",
    "makespan": "Makespan",
    "gpu_utilization": "GPU utilization",
    "mean_wait": "Mean wait",
    "p50_wait": "Median wait",
    "p95_wait": "95th percentile of waits",
    "max_wait": "Longest wait",
    "mean_jct": "Mean completion time",
    "p95_jct": "95th percentile of completion times",
    "mean_bounded_slowdown": "Mean bounded slowdown",
    "preemptions": "Preemptions",
    "work_lost_gpu_seconds": "Work lost (GPU-seconds)",
    "fairness_jain": "Fairness (Jain)",
}
STATES = ("completed", "failed", "rejected", "expired", "dead", "pending")
_TIMES = frozenset({"makespan", "mean_wait", "p50_wait", "p95_wait", "max_wait", "mean_jct", "p95_jct"})


@dataclass(frozen=True, slots=True)
class Replay:
    """One simulated policy: its name, what happened, its figures."""

    name: str
    policy: Policy
    recording: Recording
    summary: Summary


def render(nodes: Sequence[Node], replays: Sequence[Replay], title: str) -> str:
    """The page for one policy, or for two side by side."""
    start = min(
        (outcome.spec.job.submit_time for replay in replays for outcome in replay.recording.outcomes),
        default=0.0,
    )
    end = max((replay.recording.end_time for replay in replays), default=start)
    span = (start, end)
    several = len(replays) > 1
    sections = [
        _figures(replays),
        _utilization(replays, span),
        _queue(replays, span),
    ]
    for replay in replays:
        suffix = f" under {replay.name}" if several else ""
        sections.append(gantt(f"GPUs by NVLink group{suffix}", nodes, replay.recording, span))
        sections.append(_shares(replay, span, suffix))
        sections.append(_groups_table(replay, suffix))
    page = resources.files("emep.simulation.report").joinpath("report_page.html").read_text(encoding="utf-8")
    return page.replace("{{title}}", escape(title)).replace("{{body}}", "\n".join(filter(None, sections)))


def jobs_by_state(replays: Sequence[Replay]) -> list[tuple[str, list[str]]]:
    """Label and counts of every way in which a job of any replay ended, or of what it still waits for."""
    counts: list[Mapping[str, int]] = [replay.summary["states"] for replay in replays]
    states = [state for state in STATES if any(count.get(state) for count in counts)]
    return [(f"... {state}", [f"{count.get(state, 0):,}" for count in counts]) for state in states]


def show(key: str, value: Any) -> str:
    """A figure as people read it; a dash where there is none."""
    if value is None:
        return "–"
    if key == "gpu_utilization":
        return f"{100 * value:.1f} %"
    if key in _TIMES:
        return f"{value:,.2f} s" if value < 120 else f"{value:,.0f} s ({format_duration(value)})"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def show_ratio(summary: Summary, other: Summary, key: str) -> str:
    """How a figure of the second policy stands to the first's."""
    one, two = summary[key], other[key]
    if not isinstance(one, (int, float)) or not isinstance(two, (int, float)) or not one:
        return "–"
    return f"x {two / one:.3f}"


def _figures(replays: Sequence[Replay]) -> str:
    head = "".join(f"<th>{escape(replay.name)}</th>" for replay in replays)
    rows = []
    for key in FIGURES:
        cells = "".join(f"<td>{escape(show(key, replay.summary[key]))}</td>" for replay in replays)
        if len(replays) > 1:
            cells += f"<td>{show_ratio(replays[0].summary, replays[1].summary, key)}</td>"
        rows.append(f"<tr><th>{LABELS[key]}</th>{cells}</tr>")
        if key == "jobs":
            rows += [_state_row(label, shown) for label, shown in jobs_by_state(replays)]
    if len(replays) > 1:
        head += "<th>second over first</th>"
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _state_row(label: str, counts: Sequence[str]) -> str:
    cells = "".join(f"<td>{count}</td>" for count in counts)
    return f"<tr><th>{label}</th>{cells}{'<td></td>' if len(counts) > 1 else ''}</tr>"


def _utilization(replays: Sequence[Replay], span: tuple[float, float]) -> str:
    curves = []
    for slot, replay in enumerate(replays):
        series, total = replay.recording.series, replay.recording.total_gpus
        shares = [100.0 * busy / total if total else 0.0 for busy in series.busy]
        points = average_by_bin(series.times, shares, *span, _BINS)
        curves.append(Curve(replay.name, points, slot, filled=len(replays) == 1))
    return chart("GPU utilization", curves, span, 100.0, " %")


def _queue(replays: Sequence[Replay], span: tuple[float, float]) -> str:
    curves = []
    for slot, replay in enumerate(replays):
        series = replay.recording.series
        points = average_by_bin(series.times, series.queued, *span, _BINS)
        curves.append(Curve(replay.name, points, slot, filled=len(replays) == 1))
    top = max((value for curve in curves for _, value in curve.points), default=0.0)
    return chart("Jobs in the queue", curves, span, top * 1.05)


def _shares(replay: Replay, span: tuple[float, float], suffix: str) -> str:
    """Each project's part of all GPU-hours so far; dashed, the part that its weight gives it."""
    points = replay.recording.shares
    if not points:
        return ""
    final = points[-1].consumed
    projects = sorted(final, key=lambda name: (-final[name], name))
    shown, rest = projects[:_MOST_PROJECTS], projects[_MOST_PROJECTS:]
    weights = {name: replay.policy.project_weight(name) for name in projects}
    total_weight = sum(weights.values())
    curves = []
    for slot, names in enumerate([*([name] for name in shown), *([rest] if rest else [])]):
        label = names[0] if len(names) == 1 else f"{len(names)} others"
        line = []
        for point in points:
            everybody = sum(point.consumed.values())
            if everybody > 0:
                line.append((point.time, 100.0 * sum(point.consumed.get(n, 0.0) for n in names) / everybody))
        curves.append(Curve(label, line, slot))
        if total_weight > 0 and len(projects) > 1:
            target = 100.0 * sum(weights[name] for name in names) / total_weight
            curves.append(Curve("", [(span[0], target), (span[1], target)], slot, dashed=True))
    return chart(f"Fair share: part of all GPU-hours so far, by project{suffix}", curves, span, 100.0, " %")


def _groups_table(replay: Replay, suffix: str) -> str:
    columns = ("jobs", "gpu_hours", "mean_wait", "p95_wait", "mean_bounded_slowdown", "preemptions")
    names = (
        "Jobs",
        "GPU-hours",
        "Mean wait",
        "95th percentile of waits",
        "Mean bounded slowdown",
        "Preemptions",
    )
    blocks = []
    for kind in ("projects", "queues"):
        found: Mapping[str, Summary] = replay.summary[kind]
        rows = "".join(
            f"<tr><th>{escape(name)}</th>"
            + "".join(f"<td>{escape(show(column, figures[column]))}</td>" for column in columns)
            + "</tr>"
            for name, figures in found.items()
        )
        head = "".join(f"<th>{name}</th>" for name in names)
        title = f"By {kind[:-1]}{suffix}"
        blocks.append(
            f"<details><summary>{escape(title)}</summary><table><thead><tr><th></th>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table></details>"
        )
    return "".join(blocks)
