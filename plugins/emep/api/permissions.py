"""Guards that decide who may change the job, dead letter or allocation that the path names.

A job's task is changed by an account that may change the DAG's tasks; a job without one by its owner or an
operator. An allocation's work is started and ended by the account that submitted its job.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from emep.api.auth import Caller, may_edit_tasks, may_operate, user_only
from emep.api.guards import guard
from emep.api.parameters import ID_PATTERN
from emep.api.runtime import get_runtime
from emep.wire.errors import ForbiddenError, NotFoundError
from emep.wire.jobs import JobView

MAX_ID = 80


def require_change(caller: Caller, job: JobView, verb: str) -> None:
    """Raise ForbiddenError if the caller may not change the job; the job's stored DAG decides."""
    dag_id = job.airflow.dag_id if job.airflow else None
    is_own = dag_id is not None or job.user == caller.name
    if not may_edit_tasks(caller, dag_id) or not (is_own or may_operate(caller)):
        raise ForbiddenError(f"{caller.name} may not {verb} job {job.id}")


def _named(request: Request, parameter: str, what: str) -> str:
    """The id in the path; NotFoundError for one that no database can look up."""
    name = str(request.path_params.get(parameter, ""))
    if len(name) > MAX_ID or not re.fullmatch(ID_PATTERN, name, re.ASCII) or name.endswith("\n"):
        raise NotFoundError(f"there is no {what} of that id: ids are letters, digits, '.', '_' and '-'")
    return name


@guard
async def require_job_changer(request: Request, caller: Caller) -> None:
    """A user who may change the job in the path."""
    user_only(caller)
    job_id = _named(request, "job_id", "job")
    verb = "cancel" if request.method == "DELETE" else "requeue"

    def check() -> None:
        require_change(caller, get_runtime(request).ledger.jobs.get(job_id), verb)

    await run_in_threadpool(check)


@guard
async def require_letter_changer(request: Request, caller: Caller) -> None:
    """A user who may change the job of the dead letter in the path."""
    user_only(caller)
    letter_id = _named(request, "letter_id", "dead letter")
    verb = "discard the dead letter of" if request.method == "DELETE" else "requeue"

    def check() -> None:
        require_change(caller, get_runtime(request).ledger.dead_letters.get(letter_id).job, verb)

    await run_in_threadpool(check)


@guard
async def require_asker(request: Request, caller: Caller) -> None:
    """The account that submitted the job of the allocation in the path, or an administrator."""
    user_only(caller)
    allocation_id = _named(request, "allocation_id", "allocation")

    def check() -> None:
        submitted_by, dag_id = get_runtime(request).ledger.leases.asker(allocation_id)
        is_admin = "admin" in {role.lower() for role in caller.roles}
        if not is_admin and not (caller.name == submitted_by and may_edit_tasks(caller, dag_id)):
            raise ForbiddenError(
                f"allocation {allocation_id} is not {caller.name}'s: only the account that submitted its "
                "job, or an administrator, may start and end its work"
            )

    await run_in_threadpool(check)


JobChanger = Annotated[Caller, Depends(require_job_changer)]
LetterChanger = Annotated[Caller, Depends(require_letter_changer)]
Asker = Annotated[Caller, Depends(require_asker)]
