"""Jobs: submit one or many, list, get, explain, watch, requeue, cancel."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from emep.api.answers import answers
from emep.api.auth import Caller, Reader, Submitting, known_roles, may_edit_tasks
from emep.api.batches import submit_all
from emep.api.bodies import body_limit
from emep.api.explain import explain, explain_all
from emep.api.guarded import GuardedRoute
from emep.api.parameters import After, IfUnwanted, JobId, Limit, Reason, RuntimeDep, Text, Timeout
from emep.api.permissions import JobChanger
from emep.ledger.jobs.validation import Submitter
from emep.ledger.long_poll import JOBS
from emep.settings import Settings
from emep.wire.base import JobState
from emep.wire.errors import ForbiddenError, InvalidError
from emep.wire.jobs import Changes, Explanation, Explanations, JobRequest, JobView, Page
from emep.wire.operations import BatchAnswer, BatchRequest, ReasonRequest

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)
MAX_IDS = 5000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def check_task(caller: Caller, request: JobRequest, settings: Settings) -> None:
    """Raise ForbiddenError if a request names a task but does not come from EMEP's own account.

    A later try of that task takes over this job's result. So all other accounts are refused, administrators
    too: only operators, which use EMEP's account, know which task asks.
    """
    if request.airflow is not None and caller.name != settings.service_user:
        raise ForbiddenError(
            f"airflow: only EMEP's service account ({settings.service_user}) may name the task that asks, "
            f"not {caller.name}. Leave the field out; or, where this is the account of the connection "
            "emep_default, name it in [emep] service_user",
            field="airflow",
        )


def submitter_of(caller: Caller, request: JobRequest, settings: Settings) -> Submitter:
    """The account that submits a request and the user it is charged to.

    Raises ForbiddenError if the caller may not submit, or not for others, or names a task of Airflow's.
    """
    check_task(caller, request, settings)
    dag_id = request.airflow.dag_id if request.airflow else None
    if not may_edit_tasks(caller, dag_id):
        of = f" of DAG {dag_id}" if dag_id else ""
        raise ForbiddenError(f"{caller.name} may read but not submit jobs{of}")
    is_service = caller.name == settings.service_user
    names_other = request.user is not None and request.user != caller.name
    if names_other and not is_service and "admin" not in {role.lower() for role in caller.roles}:
        raise ForbiddenError(
            f"user: {caller.name} may submit as {caller.name} only; leave the field out", field="user"
        )
    user = request.user or caller.name
    # The service account submits for others, so its own role does not decide who may use a class.
    roles = known_roles(user) if names_other and is_service else caller.roles
    return Submitter(caller.name, user, roles, dag_id if is_service else None)


@router.post(
    "/jobs",
    status_code=201,
    summary="Submit a job",
    responses={200: {"model": JobView, "description": "The job that this request has made before."}},
)
@answers(409, 429)
async def submit(request: JobRequest, caller: Submitting, runtime: RuntimeDep, response: Response) -> JobView:
    """Ask for GPUs.

    201: a new job; 200: the job that this idempotency key has made before, or that has done the same work for
    an earlier try of the same Airflow task; 422: it can never run.
    """

    def take_in() -> tuple[JobView, bool]:
        return runtime.ledger.submissions.submit(request, submitter_of(caller, request, runtime.settings))

    view, is_new = await run_in_threadpool(take_in)
    if not is_new:
        response.status_code = 200
    return view


@router.post("/jobs:batch", summary="Submit many jobs")
@body_limit(8 * 1024**2)
def submit_batch(request: BatchRequest, caller: Submitting, runtime: RuntimeDep) -> BatchAnswer:
    """Ask for GPUs for up to 1000 jobs at once, in one transaction and with an outcome for each.

    The answer is 200 even if some or all were refused: see each one's status and problem.
    """
    known: dict[tuple[str | None, str | None], Submitter] = {}

    def submitter(asked: JobRequest) -> Submitter:
        key = (asked.user, asked.airflow.dag_id if asked.airflow else None)
        if key not in known:
            known[key] = submitter_of(caller, asked, runtime.settings)
        return known[key]

    return submit_all(runtime.ledger, request.jobs, submitter)


@router.get("/jobs", summary="List jobs, newest first")
def list_jobs(
    _: Reader,
    runtime: RuntimeDep,
    state: Annotated[list[JobState] | None, Query(description="May be repeated.")] = None,
    queue: Text = None,
    project: Text = None,
    user: Text = None,
    dag_id: Text = None,
    run_id: Text = None,
    after: After = None,
    limit: Limit = 100,
) -> Page:
    """A page of jobs; ``next`` of the answer asks for the following one."""
    return runtime.ledger.jobs.page(
        states=state or (),
        queue=queue,
        project=project,
        user=user,
        dag_id=dag_id,
        run_id=run_id,
        after=after,
        limit=limit,
    )


@router.get("/jobs:changes", summary="Wait for changes of jobs")
async def changes(
    _: Reader,
    runtime: RuntimeDep,
    since: Annotated[
        int, Query(ge=0, lt=2**62, description="The cursor of the last answer; 0 at first.")
    ] = 0,
    timeout: Timeout = 0,  # noqa: ASYNC109 - the protocol's own field
    ids: Annotated[
        str | None, Query(description="Only these jobs, separated by commas.", max_length=450_000)
    ] = None,
) -> Changes:
    """Jobs that changed since the cursor, as they are now; waits up to ``timeout`` seconds for the first."""
    wanted = _ids(ids)
    deadline = asyncio.get_running_loop().time() + timeout
    async with runtime.follower.subscribe(JOBS) as subscription:
        while True:
            found = await run_in_threadpool(runtime.ledger.jobs.changes, since, wanted)
            left = deadline - asyncio.get_running_loop().time()
            if found.jobs or left <= 0 or runtime.follower.is_stopping:
                return found
            since = max(since, found.cursor)
            await subscription.wait(left)


def _ids(text: str | None) -> list[str] | None:
    if text is None:
        return None
    ids = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(ids) > MAX_IDS:
        raise InvalidError(f"ids: at most {MAX_IDS} jobs at once, not {len(ids)}", field="ids")
    for job_id in ids:
        if not _ID.fullmatch(job_id):
            raise InvalidError(f"ids: {job_id[:80]!r} is not the form of a job's id", field="ids")
    return ids


@router.get("/jobs:explain", summary="Why several jobs wait")
def explain_jobs(
    _: Reader,
    runtime: RuntimeDep,
    ids: Annotated[str, Query(description="These jobs, separated by commas.", max_length=450_000)],
) -> Explanations:
    """The explanations of several jobs at once, out of one plan; those that are not known are left out."""
    jobs = runtime.ledger.jobs.jobs_named(_ids(ids) or [])
    return Explanations(items=explain_all(jobs, runtime.runner.planner, runtime.ledger.context.policy))


@router.get("/jobs/{job_id}", summary="One job")
def get_job(job_id: JobId, _: Reader, runtime: RuntimeDep) -> JobView:
    """The job as it is now."""
    return runtime.ledger.jobs.get(job_id)


@router.get(
    "/jobs/{job_id}/logs",
    summary="The job's log as text",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {}}}},
)
def job_log(job_id: JobId, _: Reader, runtime: RuntimeDep) -> StreamingResponse:
    """The whole log of the job's present or last allocation, for a browser; empty before the first."""
    job = runtime.ledger.jobs.get(job_id)

    def pieces() -> Iterator[str]:
        offset, more = 0, job.allocation_id is not None
        while more and job.allocation_id is not None:
            chunk = runtime.ledger.logs.read(job.allocation_id, offset)
            more, offset = chunk.next_offset > offset, chunk.next_offset
            yield chunk.text

    # A job writes its log freely: a browser must not guess that it is a page.
    safe = {"X-Content-Type-Options": "nosniff"}
    return StreamingResponse(pieces(), media_type="text/plain; charset=utf-8", headers=safe)


@router.get("/jobs/{job_id}/explain", summary="Why it waits")
def explain_job(job_id: JobId, _: Reader, runtime: RuntimeDep) -> Explanation:
    """Explain the job: all that blocks it, its position, each term of its score, and when it may start."""
    return explain(runtime.ledger.jobs.get(job_id), runtime.runner.planner, runtime.ledger.context.policy)


@router.get("/jobs/{job_id}/events", summary="What happened to a job")
def job_events(job_id: JobId, _: Reader, runtime: RuntimeDep, limit: Limit = 200) -> Page:
    """Its events, newest first: submitted, granted, preempted, ended, each with its reason."""
    events = runtime.ledger.jobs.job_events(job_id, limit)
    return Page(items=events, total=len(events))


@router.post("/jobs/{job_id}/requeue", summary="Put a job back into the queue")
@answers(409, 429)
def requeue(
    job_id: JobId, caller: JobChanger, runtime: RuntimeDep, request: ReasonRequest | None = None
) -> JobView:
    """Requeue a job: a running one is told to checkpoint and returns to its place, an ended one waits again.

    If an Airflow task asked for a job that has ended, that task is cleared and asks again with a new job.
    """
    reason = request.reason if request else ""
    return runtime.ledger.dead_letters.requeue_job(job_id, actor=caller.name, reason=reason)


@router.delete("/jobs/{job_id}", summary="Cancel a job")
@answers(409)
def cancel(
    job_id: JobId,
    caller: JobChanger,
    runtime: RuntimeDep,
    reason: Reason = "",
    if_unwanted: IfUnwanted = False,
) -> JobView:
    """Cancel a job: a waiting one at once; a running one is told to checkpoint and exit."""
    if if_unwanted and not runtime.ledger.tasks.is_unwanted(job_id):
        return runtime.ledger.jobs.get(job_id)
    return runtime.ledger.jobs.cancel(job_id, actor=caller.name, reason=reason)
