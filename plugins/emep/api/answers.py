"""The API's OpenAPI document with every answer of a route; FastAPI by itself lists only successful ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from emep.api.auth import PUBLIC_ENDPOINTS
from emep.api.problems import MEDIA_TYPE

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
PROBLEM = "Problem"
MEANINGS = {
    400: "The request is malformed, or ended before its body did.",
    401: "No credentials, or ones that are not valid.",
    403: "The caller is known and may not do this.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "It does not fit the present state, or contradicts an earlier request.",
    413: "The body has more bytes than this route takes.",
    422: "A field or a parameter is wrong, or nothing could ever run this.",
    429: "The caller has as much under way as one may have; see Retry-After.",
    500: "A defect of the server's; its log knows the number in the sentence.",
    503: "Not now: the database does not answer, or nothing is scheduled; see Retry-After.",
}
_HEADERS = {
    401: ("WWW-Authenticate", "string", "Bearer"),
    429: ("Retry-After", "integer", "Seconds"),
    503: ("Retry-After", "integer", "Seconds"),
}
_PROBLEM_SCHEMA: dict[str, Any] = {
    "title": PROBLEM,
    "description": "Problem details (RFC 9457). Further members say more of one kind of problem.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:emep:problem:CODE, or about:blank."},
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What happened, where, and what to do, in a sentence."},
        "code": {"type": "string", "description": "Stable: too_large, key_reused, stale_epoch, ..."},
        "field": {"type": "string", "description": "The field or parameter that is wrong."},
        "errors": {
            "type": "array",
            "description": "All wrong fields, where there are several.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}


def answers(*statuses: int) -> Callable[[_Endpoint], _Endpoint]:
    """Declare error statuses of a route that its signature does not show, such as 409 and 429."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        endpoint.answers = statuses  # type: ignore[attr-defined]
        return endpoint

    return mark


def refusals(route: APIRoute) -> list[int]:
    """Every status that a route refuses a request with."""
    found = {500, 503, *getattr(route.endpoint, "answers", ())}
    if route.endpoint in PUBLIC_ENDPOINTS:
        return sorted(found)
    found |= {401, 403, 422}
    if "{" in route.path:
        found.add(404)
    if route.body_field is not None or "requestBody" in (route.openapi_extra or {}):
        found |= {400, 408, 413}
    return sorted(found)


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the app; made once."""
    if app.openapi_schema is None:
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=routes
        )
        for route in routes:
            for method in route.methods or ():
                operation = document["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    operation["responses"].pop("422", None)
                    operation["responses"].update({str(one): _answer(one) for one in refusals(route)})
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas[PROBLEM] = _PROBLEM_SCHEMA
        app.openapi_schema = document
    return app.openapi_schema


def _answer(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{PROBLEM}"}}}
    answer: dict[str, Any] = {"description": MEANINGS[status], "content": content}
    if status in _HEADERS:
        name, kind, text = _HEADERS[status]
        answer["headers"] = {name: {"description": text, "schema": {"type": kind}}}
    return answer
