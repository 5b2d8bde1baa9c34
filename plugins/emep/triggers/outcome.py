"""Translates an ended job to its Airflow task: a value, or a sentence and whether to try again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emep.wire.jobs import JobView

BAD_INPUT = 65
"""The engines' exit status for input that can never work: no retry."""
TIMED_OUT = "execution_timeout"
"""Code of a job that its task's ``execution_timeout`` has ended."""


@dataclass(frozen=True)
class Outcome:
    """``value`` of a success; ``sentence`` and ``retry`` of a failure."""

    succeeded: bool
    value: Any = None
    sentence: str = ""
    retry: bool = False


def outcome_of(job: JobView, return_field: str = "", if_empty: Any = None) -> Outcome:
    """The outcome of a job in an end state.

    A task may be tried again if its job failed, or if the task's time limit was over while the job waited. It
    may not after bad input, or if the job was cancelled, rejected, expired or is dead (the last two are dead
    letters, kept for a person).
    """
    state = job.state.value
    if state == "completed":
        return _success(job, return_field, if_empty)
    sentence = _sentence(job)
    timed_out = state == "cancelled" and job.reason_code == TIMED_OUT
    retry = timed_out or (state == "failed" and job.exit_code != BAD_INPUT)
    return Outcome(False, sentence=sentence, retry=retry)


def _success(job: JobView, return_field: str, if_empty: Any) -> Outcome:
    value: Any = job.result if job.result is not None else {}
    for name in filter(None, return_field.split(".")):
        if not isinstance(value, dict) or name not in value:
            return Outcome(False, sentence=f"job {job.id}: its Result has no {return_field!r}.")
        value = value[name]
    return Outcome(True, value=if_empty if if_empty is not None and not value else value)


def _sentence(job: JobView) -> str:
    """Why it ended: the engine's words with file and field where it ended by itself, else EMEP's."""
    error = (job.result or {}).get("error") or {}
    own = str(error.get("message") or "") if _by_itself(job) else ""
    if not own:
        return f"job {job.id} {job.state.value}: {job.reason or f'the job is {job.state.value}'}"
    message = job.reason if own in job.reason else own
    for key in ("field", "file"):
        place = error.get(key)
        if place and str(place) not in message:
            message = f"{place}: {message}"
    return message


def _by_itself(job: JobView) -> bool:
    """Whether the job ended with an exit status of its own; its last Result then gives the reason.

    A job that was told to end, or was killed, leaves a Result too, but that says no more than this.
    """
    return job.reason_code in ("", "bad_input") or job.reason_code.startswith("exit_")
