"""Explains why a job waits, or how it ended, in codes, numbers and one sentence."""

from __future__ import annotations

import math

from emep.ledger.planning.planner import Planner
from emep.ledger.store.views import to_datetime
from emep.policy.model import Policy
from emep.scheduling.model import Waiting
from emep.wire.base import JobState
from emep.wire.jobs import Explanation, JobView, ReasonView


def explain(job: JobView, planner: Planner, policy: Policy) -> Explanation:
    """Explains one job from a plan over the present state of the ledger."""
    reasons: list[ReasonView] = []
    if job.state is JobState.PENDING:
        _, plan = planner.think()
        for waiting in plan.waiting:
            if waiting.job_id == job.id:
                return _waiting(job, waiting)
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


def _waiting(job: JobView, waiting: Waiting) -> Explanation:
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
        reasons=[ReasonView(code=reason.code.value, text=reason.text) for reason in waiting.reasons],
        class_value=score.class_value,
        deficit=score.deficit if math.isfinite(score.deficit) else None,
        score=score.score,
        order_key=list(score.order_key),
        estimated_start=to_datetime(waiting.estimated_start),
        estimate_text=waiting.estimate_text,
        sentence=sentence,
    )


def _ended_or_running(job: JobView) -> str:
    where = f" on {', '.join(job.nodes)}" if job.nodes and job.ended_at is None else ""
    # The reason of a running job is where it runs, and that of many completed jobs only that they completed.
    says_more = job.reason != job.state.value and job.state is not JobState.RUNNING
    why = f": {job.reason}" if job.reason and says_more else ""
    return f"Job {job.id} is {job.state.value}{where}{why}."
