"""Pages for people, which the browser's session with Airflow opens, and their script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from emep.api.auth import Reader, public
from emep.api.explain import explain
from emep.api.guarded import GuardedRoute
from emep.api.parameters import JobId, RuntimeDep
from emep.ui.html import HEADERS
from emep.ui.job_page import job_page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
EVENTS = 100


@router.get("/jobs/{job_id}")
def show_job(job_id: JobId, _: Reader, runtime: RuntimeDep, request: Request) -> HTMLResponse:
    """One job as a page."""
    job = runtime.ledger.jobs.get(job_id)
    why = explain(job, runtime.runner.planner, runtime.ledger.context.policy)
    events = runtime.ledger.jobs.job_events(job_id, EVENTS)
    return HTMLResponse(job_page(job, why, events, request.scope.get("root_path", "")), headers=HEADERS)


@router.get("/static/job.js")
@public
def job_script() -> Response:
    """The script of a job's page. It is the same for everyone and holds no data, so it needs no login."""
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=300"}
    return Response(_script(), media_type="text/javascript; charset=utf-8", headers=headers)


@cache
def _script() -> bytes:
    return files("emep.ui").joinpath("static", "job.js").read_bytes()
