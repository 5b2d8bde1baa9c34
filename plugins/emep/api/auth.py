"""Authentication and authorisation of callers: Airflow's users, agents, holders of a lease.

``authenticate`` is a dependency of the whole app, so every new route requires credentials from its first day.
Airflow's own dependencies are not used as they are: in a mounted app they lack ``app.state.auth_manager``,
and the one that reads a DAG's id looks for it in the path only.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from emep.api.guards import get_caller, guard
from emep.api.origins import check_origin
from emep.api.runtime import get_runtime
from emep.ledger.store.ids import AGENT_PREFIX, LEASE_PREFIX, same_secret
from emep.wire.errors import ForbiddenError, NotAuthenticatedError

WRITE: Literal["PUT"] = "PUT"
_ALLOCATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True)
class Caller:
    """A caller with valid credentials."""

    kind: Literal["user", "agent", "lease"]
    name: str
    user: Any = None
    """Airflow's user object, for its auth manager."""
    roles: tuple[str, ...] = ()


PUBLIC_ENDPOINTS: set[Callable[..., Any]] = set()
"""Endpoints that answer without credentials; only the health check and a page's script belong here."""


def public(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Let an endpoint answer without credentials."""
    PUBLIC_ENDPOINTS.add(endpoint)
    return endpoint


async def authenticate(request: Request) -> Caller | None:
    """Authenticate the caller and keep it in ``request.state.caller``; else NotAuthenticatedError (401)."""
    if request.scope.get("endpoint") in PUBLIC_ENDPOINTS:
        return None
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    if token.startswith(AGENT_PREFIX):
        caller = _agent(request, token)
    elif token.startswith(LEASE_PREFIX):
        caller = await _lease(request, token)
    else:
        if not token:
            check_origin(request)
        caller = await _airflow_user(request, token)
    request.state.caller = caller
    return caller


def _agent(request: Request, token: str) -> Caller:
    expected = get_runtime(request).settings.agent_token
    if not expected or not same_secret(token, AGENT_PREFIX + expected.removeprefix(AGENT_PREFIX)):
        raise NotAuthenticatedError(
            "this agent token is not valid: it must be the API server's [emep] agent_token"
        )
    return Caller("agent", "agent")


async def _lease(request: Request, token: str) -> Caller:
    allocation_id = request.path_params.get("allocation_id")
    if allocation_id is None:
        raise ForbiddenError("a lease token opens the routes of its own allocation only")
    if not _ALLOCATION_ID.fullmatch(allocation_id):
        # Parameters are validated after credentials: an id that no database can look up must not get there.
        raise NotAuthenticatedError("this lease token is not valid for this allocation")
    ledger = get_runtime(request).ledger
    if not ledger.allocations.knows_lease(allocation_id, token):
        await run_in_threadpool(ledger.allocations.check_lease, allocation_id, token)
    return Caller("lease", f"holder of {allocation_id}")


class KnownTokens:
    """Callers by the digest of an Airflow token that was found valid just now.

    Airflow asks its database for each call whether a token was revoked, in the event loop that all calls
    share. At a hundred calls a second with one operator's token, that was a quarter of their cost. A revoked
    token is refused after ``SECONDS`` at the latest.
    """

    SECONDS = 2.0
    MOST = 1000

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[float, Caller]] = {}

    def get(self, token: str) -> Caller | None:
        """The caller, if the token was valid a moment ago."""
        found = self._known.get(_digest(token))
        return found[1] if found is not None and time.monotonic() < found[0] else None

    def keep(self, token: str, caller: Caller) -> None:
        """Accept this token for a moment without asking Airflow again."""
        if len(self._known) >= self.MOST:
            self._known.clear()
        self._known[_digest(token)] = (time.monotonic() + self.SECONDS, caller)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


async def _airflow_user(request: Request, token: str) -> Caller:
    known: KnownTokens | None = getattr(request.app.state, "known_tokens", None)
    if known is None:
        known = request.app.state.known_tokens = KnownTokens()
    caller = known.get(token) if token else None
    if caller is None:
        caller = await _ask_airflow(request, token)
        if token:
            known.keep(token, caller)
    return caller


async def _ask_airflow(request: Request, token: str) -> Caller:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.security import HTTPAuthorizationCredentials

    credentials = HTTPAuthorizationCredentials(scheme="Bearer", credentials=token) if token else None
    try:
        get_auth_manager()
        user = await get_user(request, None, credentials)
    except HTTPException as error:
        raise NotAuthenticatedError(
            f"{error.detail}: send Authorization: Bearer TOKEN, with a token from POST /auth/token"
        ) from None
    except RuntimeError as error:
        raise NotAuthenticatedError(str(error)) from None
    return Caller("user", str(user.get_name()), user, role_names(user))


def role_names(user: Any) -> tuple[str, ...]:
    """Roles of a user as the policy spells them (``Admin``, ``Op``).

    Of the simple auth manager or of FAB's.
    """
    role = getattr(user, "role", None)
    if isinstance(role, str):
        return (role.capitalize(),)
    return tuple(str(getattr(entry, "name", entry)) for entry in getattr(user, "roles", None) or ())


def known_roles(username: str) -> tuple[str, ...]:
    """Roles of a user who is not the caller, if the auth manager can tell; else none."""
    from airflow.api_fastapi.app import get_auth_manager

    list_users = getattr(get_auth_manager(), "get_users", None)
    if list_users is None:
        return ()
    for user in list_users():
        if getattr(user, "username", None) == username:
            return role_names(user)
    return ()


# ---- what a caller may -------------------------------------------------------------------------------------


def may_view(caller: Caller) -> bool:
    """Whether a user may see the cluster's activity."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView

    return bool(
        get_auth_manager().is_authorized_view(access_view=AccessView.CLUSTER_ACTIVITY, user=caller.user)
    )


def may_operate(caller: Caller) -> bool:
    """Whether a user may change the cluster (as one may change Airflow's pools).

    An operator or administrator.
    """
    from airflow.api_fastapi.app import get_auth_manager

    return caller.kind == "user" and bool(
        get_auth_manager().is_authorized_pool(method=WRITE, user=caller.user)
    )


def may_edit_tasks(caller: Caller, dag_id: str | None) -> bool:
    """Whether a user may change task instances of the DAG (None: of DAGs in general)."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    team = DagModel.get_team_name(dag_id) if dag_id and conf.getboolean("core", "multi_team") else None
    return bool(
        get_auth_manager().is_authorized_dag(
            method=WRITE,
            access_entity=DagAccessEntity.TASK_INSTANCE,
            details=DagDetails(id=dag_id, team_name=team) if dag_id else None,
            user=caller.user,
        )
    )


# Only questions to Airflow's auth manager, which may ask a database, go to a thread.

CallerDep = Annotated[Caller, Depends(get_caller)]


def user_only(caller: Caller) -> None:
    """Raise ForbiddenError for agents and holders of a lease."""
    if caller.kind != "user":
        raise ForbiddenError(
            f"this route is for people and programs with Airflow's tokens, not for {caller.name}"
        )


@guard
async def require_reader(_: Request, caller: Caller) -> None:
    """A user who may see the cluster."""
    user_only(caller)
    if not await run_in_threadpool(may_view, caller):
        raise ForbiddenError(f"{caller.name} may not see the cluster's activity")


@guard
async def require_submitter(request: Request, caller: Caller) -> None:
    """A user who may submit jobs.

    Of the service account the DAGs that it names are looked at, which are in the body.
    """
    user_only(caller)
    if caller.name == get_runtime(request).settings.service_user:
        return
    if not await run_in_threadpool(may_edit_tasks, caller, None):
        raise ForbiddenError(f"{caller.name} may read but not submit jobs")


@guard
async def require_agent(_: Request, caller: Caller) -> None:
    """A node's agent."""
    if caller.kind != "agent":
        raise ForbiddenError("this route is for agents (Authorization: Bearer emep-agent.SECRET)")


@guard
async def require_agent_or_reader(request: Request, caller: Caller) -> None:
    """A node's agent, or a user who may see the cluster."""
    if caller.kind != "agent":
        await require_reader(request)


@guard
async def require_agent_or_operator(_: Request, caller: Caller) -> None:
    """A node's agent, or a user who may change the cluster."""
    if caller.kind != "agent" and not await run_in_threadpool(may_operate, caller):
        raise ForbiddenError(f"{caller.name} may not change nodes; an agent or an operator may")


@guard
async def require_operator(_: Request, caller: Caller) -> None:
    """A user who may change the cluster."""
    user_only(caller)
    if not await run_in_threadpool(may_operate, caller):
        raise ForbiddenError(f"{caller.name} may not change the cluster; an operator or administrator may")


@guard
async def require_holder(_: Request, caller: Caller) -> None:
    """The holder of the allocation in the path (``authenticate`` has compared the token)."""
    if caller.kind != "lease":
        raise ForbiddenError(
            "this route is for the allocation's holder (Authorization: Bearer emep-lease.TOKEN)"
        )


@guard
async def require_holder_or_reader(request: Request, caller: Caller) -> None:
    """The holder of the allocation in the path, or a user who may see the cluster."""
    if caller.kind != "lease":
        await require_reader(request)


Reader = Annotated[Caller, Depends(require_reader)]
Submitting = Annotated[Caller, Depends(require_submitter)]
Agent = Annotated[Caller, Depends(require_agent)]
AgentOrReader = Annotated[Caller, Depends(require_agent_or_reader)]
AgentOrOperator = Annotated[Caller, Depends(require_agent_or_operator)]
Operator = Annotated[Caller, Depends(require_operator)]
Holder = Annotated[Caller, Depends(require_holder)]
HolderOrReader = Annotated[Caller, Depends(require_holder_or_reader)]
