"""The policy, the health check, and the API's own description behind authentication."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse

from emep.api.auth import CallerDep, Reader, public
from emep.api.description import page
from emep.api.guarded import GuardedRoute
from emep.api.parameters import RuntimeDep
from emep.api.runtime import Runtime
from emep.ledger.store.views import to_datetime

v1 = APIRouter(tags=["policy"], route_class=GuardedRoute)
root = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@v1.get("/policy", summary="The policy in force")
def get_policy(_: Reader, runtime: RuntimeDep) -> dict[str, Any]:
    """The whole policy, defaults included, in the policy file's own shape (durations in seconds).

    While the policy file is refused, ``problem`` says why (``message``, ``since``), and the answer is the
    policy that was in force before.
    """
    policies = runtime.ledger.context.policies
    document = policies().describe()
    problem = policies.problem
    if problem is not None:
        document["problem"] = {"message": problem.message, "since": to_datetime(problem.since)}
    return document


@root.get("/health")
@public
def health(request: Request) -> JSONResponse:
    """Whether this server schedules, and its state; 503 if it cannot decide anything.

    ``state``: ``idle`` (nothing waits), ``planning`` (jobs wait, the plan is fresh), ``behind`` (the plan is
    late), ``failing`` (``failing`` names what: database, disk_full, plan), ``stopped``. ``policy``: ``file``,
    or ``last_good`` while the file is refused.
    """
    runtime: Runtime | None = getattr(request.app.state, "runtime", None)
    if runtime is None:
        return JSONResponse({"ok": False, "state": "stopped", "last_plan_age_seconds": None}, 503)
    found = runtime.runner.health()
    answer = {
        "ok": found.ok,
        "state": found.state,
        "last_plan_age_seconds": found.plan_age,
        "policy": "file" if runtime.ledger.context.policies.problem is None else "last_good",
    }
    if found.failing:
        answer["failing"] = found.failing
    return JSONResponse(answer, 200 if found.ok else 503)


@root.get("/openapi.json")
def openapi(request: Request, _: CallerDep) -> JSONResponse:
    """The API's description."""
    return JSONResponse({**request.app.openapi(), "servers": [{"url": request.scope.get("root_path", "")}]})


@root.get("/docs")
def docs(request: Request, _: CallerDep) -> HTMLResponse:
    """The API's description as a page that loads nothing from elsewhere."""
    return HTMLResponse(page(request.app.openapi(), request.scope.get("root_path", "")))
