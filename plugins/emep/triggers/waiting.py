"""What a task's log says of its job: who asked for what once, why it waits once, then only what has changed.

No I/O, so that operators and triggers share it. Lines are wrapped, because Airflow shows a log line as it is.
"""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emep.wire.units import count_of

if TYPE_CHECKING:
    from emep.wire.jobs import Explanation, HolderView, JobView

WIDTH = 100
SHOWN_HOLDERS = 3
LEAST_MOVE = 60.0
"""An estimate that moves by fewer seconds, or by less than a fifth of what is left, is no news."""


def introduction(job: JobView) -> list[str]:
    """The job with its ids: the only lines of the log that have them."""
    names = (("trace", job.trace_id), ("experiment", job.experiment_id), ("type", job.job_type))
    ids = ", ".join(f"{name} {value}" for name, value in names if value)
    asked = count_of(job.gpu_count, "GPU") if job.gpu_count else "CPU cores only"
    return [
        *wrapped(
            f"Job {job.id} asks queue {job.queue} for {asked} "
            f"(priority {job.priority}, project {job.project}, user {job.user})."
        ),
        *(wrapped(f"  Ids: {ids}.") if ids else ()),
        *wrapped(f"  Its page: the link 'EMEP job' of this task. On a terminal: emep explain {job.id}"),
    ]


def describe(job: JobView) -> str:
    """The state of a job in one sentence."""
    where = (
        f" on {', '.join(f'{gpu.node}:{gpu.index}' for gpu in job.gpus) or ', '.join(job.nodes)}"
        if job.nodes
        else ""
    )
    again = f" (epoch {job.epoch})" if job.epoch > 1 else ""
    state = job.state.value
    if state == "pending":
        if job.reason.startswith("waits "):
            return f"Job {job.id} {job.reason}{again}"
        return f"Job {job.id} waits{again}: {job.reason or 'for the next plan'}"
    if state in ("starting", "running"):
        return f"Job {job.id} is {state}{where}{again}"
    why = f": {job.reason}" if job.reason not in ("", state) else ""
    return f"Job {job.id} is {state}{again}{why}"


class JobNews:
    """Finds what a log has not said yet of one job. ``known`` is what another reader has said before."""

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        known = known if isinstance(known, dict) else {}
        self.sentence = str(known.get("sentence", ""))
        """The last state that was said."""
        self._place: dict[str, Any] | None = known.get("place")

    def handed_over(self) -> dict[str, Any]:
        """What was said, as JSON, for the reader that goes on."""
        return {"sentence": self.sentence, "place": self._place}

    def of_state(self, job: JobView) -> list[str]:
        """The job's state where it is another than the last one said."""
        sentence = describe(job)
        if sentence == self.sentence:
            return []
        self.sentence, self._place = sentence, None
        return wrapped(sentence)

    def of_waiting(self, job: JobView, why: Explanation, now: datetime | None = None) -> list[str]:
        """Why a pending job waits: all of it the first time, then what has changed, else nothing."""
        now = now or datetime.now(UTC)
        before, self._place = self._place, _place(why)
        self.sentence = self.sentence or f"Job {job.id} waits"
        if before is None:
            self.sentence = f"Job {job.id} waits"
            return _whole(job, why, now)
        if not _is_news(before, self._place, now):
            # Small moves add up: they are measured from what was said.
            self._place = before
            return []
        return _changed(why, before, now)


def wrapped(text: str) -> list[str]:
    """The text in lines of at most ``WIDTH`` characters, the second one and those after it indented."""
    indent = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def _place(why: Explanation) -> dict[str, Any]:
    return {
        "position": why.position,
        "codes": sorted({reason.code for reason in why.reasons}),
        "start": why.estimated_start.timestamp() if why.estimated_start else None,
        "kind": why.estimate_text.partition(",")[0].partition(":")[0],
        "holders": [holder.job_id for holder in why.holders],
    }


def _is_news(before: dict[str, Any], place: dict[str, Any], now: datetime) -> bool:
    if any(before[name] != place[name] for name in ("position", "codes", "kind")):
        return True
    old, new = before["start"], place["start"]
    if old is None or new is None:
        return bool(old != new)
    left = new - now.timestamp()
    if old <= now.timestamp() and left < LEAST_MOVE:
        return False  # due since it was last said, it moves along with the clock
    return bool(abs(new - old) > max(LEAST_MOVE, 0.2 * abs(left)))


def _whole(job: JobView, why: Explanation, now: datetime) -> list[str]:
    place = f"number {why.position} of {why.waiting}" if why.position else "not in the line"
    lines = wrapped(f"Job {job.id} waits in queue {job.queue}: {place}.")
    if why.reasons:
        lines += wrapped(f"  Why: {_reasons(why)}.")
    lines += wrapped(f"  Start: {_start(why, now)}.")
    if why.holders:
        lines += wrapped(f"  {_held(why, now)}.")
    return lines


def _changed(why: Explanation, before: dict[str, Any], now: datetime) -> list[str]:
    place = f"number {why.position} of {why.waiting}" if why.position else "not in the line"
    lines = wrapped(f"Now {place}: {_reasons(why)}. Start: {_start(why, now)}.")
    if why.holders and [holder.job_id for holder in why.holders] != before["holders"]:
        lines += wrapped(f"  {_held(why, now)}.")
    return lines


def _reasons(why: Explanation) -> str:
    return "; ".join(reason.text for reason in why.reasons) or "it is looked at again in the next plan"


def _start(why: Explanation, now: datetime) -> str:
    if why.estimated_start is None:
        return why.estimate_text or "unknown"
    text = f" ({why.estimate_text})" if why.estimate_text else ""
    return f"{_clock(why.estimated_start, now)}{text}"


def _held(why: Explanation, now: datetime) -> str:
    shown = [_holder(one, now) for one in why.holders[:SHOWN_HOLDERS]]
    rest = why.holder_count - len(shown)
    more = f"; and {count_of(rest, 'more job')}" if rest > 0 else ""
    return f"GPUs that it could use are held by {'; '.join(shown)}{more}"


def _holder(one: HolderView, now: datetime) -> str:
    until = "without a time limit"
    if one.until is not None:
        until = f"until {_clock(one.until, now)} at the latest"
    leaving = ", about to yield" if one.yielding else ""
    kind = f", {one.job_type}" if one.job_type else ""
    nodes = ", ".join(one.nodes[:4]) + (", ..." if len(one.nodes) > 4 else "")
    return (
        f"job {one.job_id} ({one.user} of {one.project}{kind}) with {count_of(one.gpu_count, 'GPU')} "
        f"on {nodes} {until}{leaving}"
    )


def _clock(moment: datetime, now: datetime) -> str:
    moment = moment.astimezone(UTC)
    form = "%H:%M UTC" if moment.date() == now.astimezone(UTC).date() else "%Y-%m-%d %H:%M UTC"
    return moment.strftime(form)
