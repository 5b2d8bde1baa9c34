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
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.exceptions import HTTPException

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


async def emep_error(_: Request, error: Exception) -> JSONResponse:
    """Answer an error that the ledger or the API raised."""
    assert isinstance(error, EmepError)  # noqa: S101
    headers = {}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = RETRY_AFTER_SECONDS
    if isinstance(error, TooManyError):
        headers["Retry-After"] = str(error.retry_after)
    return JSONResponse(document_of(error), error.status, headers, MEDIA_TYPE)


async def http_error(_: Request, error: Exception) -> JSONResponse:
    """Answer a refusal of the framework: unknown paths, methods, bodies that are no JSON."""
    assert isinstance(error, HTTPException)  # noqa: S101
    title = HTTPStatus(error.status_code).phrase
    return problem(error.status_code, title, str(error.detail), headers=error.headers)


async def validation_error(_: Request, error: Exception) -> JSONResponse:
    """Answer for fields of the wrong type, size or name; lists all, and names the first in the sentence."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return JSONResponse(invalid_document(error.errors()), 422, media_type=MEDIA_TYPE)


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
