"""The page of one job: its state, why it waits and for whom, what happened to it, its result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from emep.results.summary import facts as result_facts
from emep.results.summary import outputs, warnings
from emep.results.tables import table_of
from emep.ui.html import Html, document, facts, link, paragraph, section, shown, table
from emep.wire.jobs import AirflowTask, EventView, Explanation, HolderView, JobView
from emep.wire.units import count_of, format_duration, format_memory

_SIGNS = {
    "pending": "…",
    "starting": "▷",
    "running": "▶",
    "yielding": "⏸",
    "completed": "✓",
    "failed": "✗",
    "dead": "✗",
    "rejected": "✗",
    "cancelled": "■",
    "expired": "■",
}
_ENDED = frozenset({"completed", "failed", "dead", "rejected", "cancelled", "expired"})
REFRESH_SECONDS = {"pending": 10, "starting": 3, "running": 5, "yielding": 3}
"""By state; a job that has ended changes no more."""


def job_page(job: JobView, why: Explanation, events: Sequence[EventView], root: str) -> str:
    """The whole page. ``root`` is where the app is mounted, such as ``/emep``."""
    refresh = REFRESH_SECONDS.get(job.state.value, 0)
    main = (
        _head(job, why),
        _links(job, root),
        section("Job", facts(_facts(job))),
        _waiting(job, why, root),
        _result(job),
        section("What happened", _events(events)),
    )
    body = Html(f'<main data-refresh="{refresh}">{"".join(main)}</main>')
    return document(f"Job {job.id}: {job.state.value}", [body], f"{root}/static/job.js")


def task_path(task: AirflowTask, root: str) -> str:
    """The task instance in Airflow's own pages, which are mounted beside this app."""
    base = root.removesuffix("/emep")
    parts = (quote(part, safe="") for part in (task.dag_id, task.run_id, task.task_id))
    path = "{}/dags/{}/runs/{}/tasks/{}".format(base, *parts)
    return path if task.map_index < 0 else f"{path}/mapped/{task.map_index}"


def _head(job: JobView, why: Explanation) -> Html:
    state = job.state.value
    title = Html(
        f'<h1>Job {shown(job.id)} <span class="state">{_SIGNS.get(state, "")} {shown(state)}</span></h1>'
    )
    return Html(title + paragraph(why.sentence, "lead"))


def _links(job: JobView, root: str) -> Html:
    api = f"{root}/api/v1/jobs/{quote(job.id)}"
    found = [link(f"{api}/logs", "Log of its work"), link(api, "As JSON")]
    if job.airflow is not None:
        found.insert(0, link(task_path(job.airflow, root), "Its task in Airflow"))
    return Html(f"<nav>{''.join(found)}</nav>")


def _facts(job: JobView) -> Iterable[tuple[str, object]]:
    gpus = count_of(job.gpu_count, "GPU") if job.gpu_count else "none: CPU cores only"
    yield "GPUs asked for", gpus + (" in one NVLink group" if job.nvlink_required else "")
    yield "Queue, priority", f"{job.queue}, {job.priority}"
    yield "Project, user", f"{job.project}, {job.user}"
    if job.nodes:
        at = ", ".join(f"{gpu.node}:{gpu.index}" for gpu in job.gpus) or ", ".join(job.nodes)
        yield ("Ran on" if job.state.value in _ENDED else "Runs on"), at
    yield "Submitted", job.submitted_at
    yield "Started", job.started_at
    yield "Ended", job.ended_at
    if job.started_at is not None:
        yield "Waited", format_duration((job.started_at - job.submitted_at).total_seconds())
        if job.ended_at is not None:
            yield "Took", format_duration((job.ended_at - job.started_at).total_seconds())
    if job.preempted or job.requeues:
        yield (
            "Began again",
            f"{job.requeues} requeues, grant {job.epoch}" + (", was preempted" if job.preempted else ""),
        )
    if job.promoted_from_gpus:
        yield (
            "Runs on the CPU since",
            f"it ran out of the memory of {count_of(job.promoted_from_gpus, 'GPU')}",
        )
    yield "Type", job.job_type
    yield "Trace", job.trace_id
    yield "Experiment", job.experiment_id
    yield "Exit status", None if job.exit_code is None else str(job.exit_code)


def _waiting(job: JobView, why: Explanation, root: str) -> Html:
    if job.state.value != "pending":
        return Html("")
    place = f"{why.position} of {why.waiting}" if why.position else ""
    start: object = why.estimate_text or "unknown"
    if why.estimated_start is not None:
        start = Html(f"{shown(why.estimated_start)} ({shown(why.estimate_text)})")
    reasons = Html("<br>".join(shown(reason.text) for reason in why.reasons))
    rows = [("Position", place), ("Start", start), ("Because", reasons), ("Order", "; ".join(_order(why)))]
    return Html(section("Why it waits", facts(rows)) + section("Who holds the GPUs", _holders(why, root)))


def _order(why: Explanation) -> list[str]:
    """The order key without its last terms, which only break ties and stand on the page already."""
    return [term for term in why.order_key if not term.startswith(("submitted ", "job id "))]


def _holders(why: Explanation, root: str) -> Html:
    if not why.holders:
        return Html("")
    header = ("Job", "User", "Project", "Type", "GPUs", "Nodes", "Until, at the latest")
    listed = table(header, (_holder(one, root) for one in why.holders))
    rest = why.holder_count - len(why.holders)
    return Html(listed + (paragraph(f"and {count_of(rest, 'more job')}", "quiet") if rest > 0 else ""))


def _holder(one: HolderView, root: str) -> tuple[object, ...]:
    until: object = "no limit" if one.until is None else one.until
    if one.yielding:
        until = Html(f"{shown(until)}, told to yield")
    page = link(f"{root}/jobs/{quote(one.job_id)}", one.job_id)
    return page, one.user, one.project, one.job_type, one.gpu_count, ", ".join(one.nodes), until


def _result(job: JobView) -> Html:
    result = job.result
    if not isinstance(result, Mapping):
        return Html("")
    metrics = result.get("metrics")
    parts = []
    if (found := table_of(metrics)) is not None:
        parts.append(table(found.header, found.rows, "numbers"))
    rows: list[tuple[str, object]] = []
    if isinstance(metrics, Mapping):
        rows = [(name, value) for line in result_facts(metrics) for name, _, value in [line.partition(": ")]]
    rows += outputs(result)
    if isinstance(peak := result.get("peak_memory_bytes"), int) and peak > 0:
        rows.append(("peak memory", format_memory(peak)))
    parts.append(facts(rows))
    parts += [paragraph(f"Warning: {text}") for text in warnings(metrics)]
    raw = json.dumps(result, indent=1, ensure_ascii=False)
    parts.append(Html(f"<details><summary>As JSON</summary><pre>{shown(raw)}</pre></details>"))
    return section("Result", *parts)


def _events(events: Sequence[EventView]) -> Html:
    if not events:
        return Html("")
    rows = (
        (
            one.time,
            one.event.replace("_", " "),
            one.reason or one.reason_code,
            ", ".join(one.nodes),
            one.actor,
        )
        for one in events
    )
    return table(("When", "What", "Why", "Where", "By"), rows)
