"""Answers every error with problem details (RFC 9457) that name the field and the fix."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.exceptions import HTTPException

from emep.ui.error_page import error_page
from emep.ui.html import HEADERS
from emep.wire.errors import EmepError, TooManyError

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = "2"


def problem(
    status: int,
    title: str,
    detail: str,
    *,
    code: str = "",
    headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> JSONResponse:
    """An answer of that status with its problem details."""
    document = _document(status, title, detail, code, extra)
    return JSONResponse(document, status, dict(headers or {}), MEDIA_TYPE)


def _answer(
    request: Request, document: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """The problem details; as a page with the sentence where a browser opens an address."""
    status = int(document["status"])
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        root = request.scope.get("root_path", "")
        text = error_page(status, document["title"], document["detail"], request.url.path, root)
        return HTMLResponse(text, status, {**(headers or {}), **HEADERS})
    return JSONResponse(document, status, dict(headers or {}), MEDIA_TYPE)


def _document(status: int, title: str, detail: str, code: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    kind = f"urn:emep:problem:{code}" if code else "about:blank"
    document: dict[str, Any] = {"type": kind, "title": title, "status": status, "detail": detail}
    if code:
        document["code"] = code
    document.update({name: value for name, value in extra.items() if value is not None})
    encoded: dict[str, Any] = jsonable_encoder(document)
    return encoded


def document_of(error: EmepError) -> dict[str, Any]:
    """The problem details of a refusal."""
    return _document(
        error.status, error.title, error.message, error.code, {"field": error.field, **error.extra}
    )


def invalid_document(errors: Sequence[Any]) -> dict[str, Any]:
    """The problem details of wrong fields: all of them, the first one in the sentence."""
    found = [_describe(entry) for entry in errors]
    first = found[0] if found else {"field": "body", "message": "is not valid"}
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return _document(
        422,
        "Invalid",
        f"{first['field']}: {first['message']}{more}",
        "invalid",
        {"field": first["field"], "errors": found[:50]},
    )


async def emep_error(request: Request, error: Exception) -> Response:
    """A refusal of the ledger's or the API's own."""
    assert isinstance(error, EmepError)  # noqa: S101
    headers = {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = RETRY_AFTER_SECONDS
    if isinstance(error, TooManyError):
        headers["Retry-After"] = str(error.retry_after)
    return _answer(request, document_of(error), headers)


async def http_error(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown paths, methods, bodies that are no JSON."""
    assert isinstance(error, HTTPException)  # noqa: S101
    title = HTTPStatus(error.status_code).phrase
    return _answer(request, _document(error.status_code, title, str(error.detail), "", {}), error.headers)


async def validation_error(request: Request, error: Exception) -> Response:
    """Fields of the wrong type, size or name: all of them, the first one in the sentence."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return _answer(request, invalid_document(error.errors()))


def _describe(entry: Mapping[str, Any]) -> dict[str, str]:
    location: Sequence[Any] = entry.get("loc", ())
    parts = [part for part in location if part not in ("body", "query", "path")]
    field = ""
    for part in parts:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    kind, message = str(entry.get("type", "")), str(entry.get("msg", "is not valid"))
    if kind == "extra_forbidden":
        message = "is not a field of this request; check its spelling or leave it out"
    elif kind == "missing":
        message = "is required" if parts else "a JSON body is required (Content-Type: application/json)"
    elif kind == "json_invalid":
        field, message = "body", f"is no valid JSON: {message}"
    return {"field": field or "body", "message": message.removeprefix("Value error, ")[:500]}


async def database_error(_: Request, error: Exception) -> JSONResponse:
    """Answer when the database refuses a value or is away.

    A value that it cannot hold is the caller's mistake; any other request may be retried.
    """
    error_id = uuid.uuid4().hex[:12]
    log.error("database error %s", error_id, exc_info=error)
    if isinstance(error, DBAPIError) and getattr(error.orig, "pgcode", "")[:2] == "22":
        return problem(422, "Invalid", "a value is out of the range that can be stored", code="invalid")
    return problem(
        503,
        "Unavailable",
        f"the database does not answer as it should (error {error_id} in the server's log); try again",
        code="unavailable",
        headers={"Retry-After": RETRY_AFTER_SECONDS},
    )


async def defect(_: Request, error: Exception) -> JSONResponse:
    """Answer for a defect of EMEP's: the caller gets a number, and the log has the details under it."""
    error_id = uuid.uuid4().hex[:12]
    log.error("unexpected error %s", error_id, exc_info=error)
    return problem(
        500, "Internal error", f"unexpected error {error_id}, see the server's log", code="internal"
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app with problem details."""
    app.add_exception_handler(EmepError, emep_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(SQLAlchemyError, database_error)
    app.add_exception_handler(Exception, defect)
