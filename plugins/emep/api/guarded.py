"""The route class of the API: it checks the caller and the query first, and only then reads the body."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from emep.api.auth import PUBLIC_ENDPOINTS, authenticate
from emep.api.bodies import BoundedRequest, body_bytes, settle
from emep.api.guards import guards_of
from emep.wire.base import STORABLE_IS_CHECKED
from emep.wire.base import Request as Document
from emep.wire.errors import InvalidError

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class GuardedRoute(APIRoute):
    """Authenticates, authorises and looks at the query before the body is read.

    An unknown query parameter, or one that is given twice, is refused (422). If it were ignored, the caller
    would believe that it took effect.
    """

    def get_route_handler(self) -> Handler:
        """The handler that FastAPI calls for a request."""
        handle = super().get_route_handler()
        if self.endpoint in PUBLIC_ENDPOINTS:
            return handle
        guards, known = guards_of(self.dependant), _query_names(self.dependant)
        limit, is_document = body_bytes(self.endpoint), _takes_document(self)
        has_body = self.body_field is not None

        async def guarded(request: Request) -> Response:
            bounded = BoundedRequest(request.scope, request.receive, limit=limit, is_document=is_document)
            try:
                await authenticate(request)
                for guard in guards:
                    await guard(request)
                _check_query(request, known)
                if has_body:
                    await bounded.take()
                return await handle(bounded)
            except ClientDisconnect:
                raise HTTPException(400, "the connection ended before the body did") from None
            finally:
                STORABLE_IS_CHECKED.set(False)
                await settle(bounded)

        return guarded


def _query_names(dependant: Dependant) -> Mapping[str, bool]:
    """Query parameters by the name in the URL; True: may be repeated."""
    flat = get_flat_dependant(dependant)
    return {
        field.alias: field.field_info.annotation is not None and "list" in str(field.field_info.annotation)
        for field in flat.query_params
    }


def _takes_document(route: APIRoute) -> bool:
    kind = getattr(route.body_field, "type_", None) or getattr(
        getattr(route.body_field, "field_info", None), "annotation", None
    )
    kinds = getattr(kind, "__args__", (kind,))
    return any(
        isinstance(one, type) and issubclass(one, BaseModel) and issubclass(one, Document) for one in kinds
    )


def _check_query(request: Request, known: Mapping[str, bool]) -> None:
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            shown = name[:80].encode("ascii", "backslashreplace").decode()
            others = ", ".join(sorted(known)) or "none"
            raise InvalidError(f"{shown}: is no parameter of this route, which knows {others}", field=shown)
        if name in seen and not known[name]:
            raise InvalidError(f"{name}: is given twice; give it once", field=name)
        seen.add(name)
