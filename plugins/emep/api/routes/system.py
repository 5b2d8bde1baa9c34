"""The policy, the health check, and the API's own description behind authentication."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.exc import SQLAlchemyError

from emep.api.auth import CallerDep, Reader, public
from emep.api.description import page
from emep.api.guarded import GuardedRoute
from emep.api.parameters import RuntimeDep
from emep.api.runtime import Runtime

v1 = APIRouter(tags=["policy"], route_class=GuardedRoute)
root = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@v1.get("/policy", summary="The policy in force")
def get_policy(_: Reader, runtime: RuntimeDep) -> dict[str, Any]:
    """The whole policy, defaults included, in the policy file's own shape (durations in seconds)."""
    return runtime.ledger.policy.describe()


@root.get("/health")
@public
def health(request: Request) -> JSONResponse:
    """``ok`` and the age of the last plan, nothing else; 503 where nothing is scheduled."""
    runtime: Runtime | None = getattr(request.app.state, "runtime", None)
    age, ok = None, False
    if runtime is not None:
        try:
            age = runtime.runner.last_plan_age()
            ok = runtime.runner.is_alive
        except SQLAlchemyError:
            ok = False
    return JSONResponse({"ok": ok, "last_plan_age_seconds": age}, 200 if ok else 503)


@root.get("/openapi.json")
def openapi(request: Request, _: CallerDep) -> JSONResponse:
    """The API's description."""
    return JSONResponse({**request.app.openapi(), "servers": [{"url": request.scope.get("root_path", "")}]})


@root.get("/docs")
def docs(request: Request, _: CallerDep) -> HTMLResponse:
    """The API's description as a page that loads nothing from elsewhere."""
    return HTMLResponse(page(request.app.openapi(), request.scope.get("root_path", "")))
