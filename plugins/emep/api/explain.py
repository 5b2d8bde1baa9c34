"""Explains why a job waits, or how it ended, in codes, numbers and one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable

from emep.api.holders import MOST, Holders
from emep.ledger.planning.planner import Planner
from emep.ledger.store.views import to_datetime
from emep.policy import Policy
from emep.scheduling.model import Plan, Waiting
from emep.wire.base import JobState
from emep.wire.jobs import Explanation, HolderView, JobView, ReasonView


def explain(job: JobView, planner: Planner, policy: Policy) -> Explanation:
    """The explanation of one job, out of a plan over the ledger as it is now."""
    return explain_all([job], planner, policy)[0]


def explain_all(jobs: Iterable[JobView], planner: Planner, policy: Policy) -> list[Explanation]:
    """The explanations of several jobs, out of one plan."""
    jobs = list(jobs)
    if all(job.state is not JobState.PENDING for job in jobs):
        return [_without_place(job, None, policy) for job in jobs]
    seen, plan = planner.think()
    places = {waiting.job_id: waiting for waiting in plan.waiting}
    holders = Holders(seen.snapshot, policy)
    found = []
    for job in jobs:
        waiting = places.get(job.id) if job.state is JobState.PENDING else None
        if waiting is None:
            found.append(_without_place(job, plan, policy))
        else:
            found.append(_waiting(job, waiting, len(places), holders.of(job.id)))
    return found


def _without_place(job: JobView, plan: Plan | None, policy: Policy) -> Explanation:
    """A job that the plan has not left waiting: it runs, has ended, or can never run."""
    reasons: list[ReasonView] = []
    if job.state is JobState.PENDING and plan is not None:
        reasons = [
            ReasonView(code=one.code.value, text=f"cannot run any more: {one.message}")
            for one in plan.rejections
            if one.job_id == job.id
        ]
    try:
        value = policy.class_value(job.priority)
    except KeyError:
        value = 0.0
    return Explanation(
        job_id=job.id,
        state=job.state,
        trace_id=job.trace_id,
        experiment_id=job.experiment_id,
        job_type=job.job_type,
        position=None,
        reasons=reasons,
        class_value=value,
        deficit=0.0,
        score=0.0,
        order_key=[],
        estimated_start=job.started_at,
        estimate_text="",
        sentence=f"Job {job.id} waits: {reasons[0].text}." if reasons else _ended_or_running(job),
    )


def _waiting(job: JobView, waiting: Waiting, line: int, holders: list[HolderView]) -> Explanation:
    score = waiting.score
    because = "; ".join(reason.text for reason in waiting.reasons) or "it is its turn at the next plan"
    sentence = f"Job {job.id} is number {waiting.position} in the queue: {because}."
    if waiting.estimate_text:
        sentence += f" Start: {waiting.estimate_text}."
    return Explanation(
        job_id=job.id,
        state=job.state,
        trace_id=job.trace_id,
        experiment_id=job.experiment_id,
        job_type=job.job_type,
        position=waiting.position,
        waiting=line,
        reasons=[ReasonView(code=reason.code.value, text=reason.text) for reason in waiting.reasons],
        class_value=score.class_value,
        deficit=score.deficit if math.isfinite(score.deficit) else None,
        score=score.score,
        order_key=list(score.order_key),
        estimated_start=to_datetime(waiting.estimated_start),
        estimate_text=waiting.estimate_text,
        sentence=sentence,
        holders=holders[:MOST],
        holder_count=len(holders),
    )


def _ended_or_running(job: JobView) -> str:
    where = f" on {', '.join(job.nodes)}" if job.nodes and job.ended_at is None else ""
    # The reason of a running job is where it runs, and that of many completed jobs only that they completed.
    says_more = job.reason != job.state.value and job.state is not JobState.RUNNING
    why = f": {job.reason}" if job.reason and says_more else ""
    return f"Job {job.id} is {job.state.value}{where}{why}."
