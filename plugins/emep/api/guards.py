"""Guards decide whether a caller may use a route before any byte of the body is read.

FastAPI reads and parses a body first and asks dependencies afterwards, so an anonymous caller could make the
server work. A guard is a dependency that ``GuardedRoute`` (``emep.api.guarded``) asks beforehand, from the
headers and the path alone; the dependency itself then only hands the caller on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.dependencies.models import Dependant

from emep.wire.errors import NotAuthenticatedError

if TYPE_CHECKING:
    from emep.api.auth import Caller

Rule = Callable[[Request, "Caller"], Awaitable[None]]
"""Raises ForbiddenError where the caller may not use the route."""
Guard = Callable[[Request], Awaitable[Any]]
_GUARDS: set[Guard] = set()


async def get_caller(request: Request) -> Caller:
    """The caller of this route. Raises NotAuthenticatedError if the request was not authenticated."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        raise NotAuthenticatedError("not authenticated")
    return caller


def guard(rule: Rule) -> Guard:
    """A dependency that returns the caller; its rule is checked once for each request."""

    # A coroutine, which runs where the request is read: FastAPI hands a plain function to a thread and back,
    # and while the planner computes each of those waits for its turn.
    async def dependency(request: Request) -> Any:
        caller = await get_caller(request)
        passed: set[Guard] = request.scope.setdefault("emep.passed", set())
        if dependency not in passed:
            await rule(request, caller)
            passed.add(dependency)
        return caller

    dependency.__name__ = getattr(rule, "__name__", "guard")
    dependency.__doc__ = rule.__doc__
    _GUARDS.add(dependency)
    return dependency


def guards_of(dependant: Dependant) -> list[Guard]:
    """The guards that a route depends on."""
    return [call for call in _calls(dependant) if call in _GUARDS]


def _calls(dependant: Dependant) -> Iterator[Any]:
    for one in dependant.dependencies:
        yield one.call
        yield from _calls(one)
