"""The client's errors, each with one sentence for people."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Any

import httpx


class EmepError(Exception):
    """Base of everything the client raises; ``str()`` is one sentence for people."""


class EmepConfigurationError(EmepError):
    """The URL or the credentials are missing or make no sense."""


class EmepConnectionError(EmepError):
    """The API could not be reached, or did not answer in time."""

    def __init__(self, message: str, *, url: str) -> None:
        super().__init__(message)
        self.url = url


class EmepApiError(EmepError):
    """The API refused: an RFC 9457 problem document, or whatever stood there instead.

    ``status`` is the HTTP status, ``title`` the kind of problem, ``detail`` the sentence, ``field`` the
    request's field that is wrong (or None), ``problem`` the whole document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str = "",
        *,
        field: str | None = None,
        problem: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.status, self.title, self.detail, self.field = status, title, detail, field
        self.problem = problem or {}
        self.retry_after = retry_after
        sentence = detail or title
        if field and field not in sentence:
            sentence = f"{field}: {sentence}"
        super().__init__(sentence)


def api_error(response: httpx.Response) -> EmepApiError:
    """The error in a response of status 400 or above, whatever produced it (EMEP, Airflow, a proxy)."""
    status = response.status_code
    title = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else f"HTTP {status}"
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        url = str(response.request.url.copy_with(query=None))
        return EmepApiError(
            status, title, f"{url} answered {status} {title}", retry_after=retry_after(response)
        )
    detail, field = _detail_and_field(document)
    return EmepApiError(
        status,
        str(document.get("title") or title),
        detail,
        field=field,
        problem=document,
        retry_after=retry_after(response),
    )


def _detail_and_field(document: dict[str, Any]) -> tuple[str, str | None]:
    field = document.get("field")
    detail = document.get("detail") or document.get("message") or ""
    if isinstance(detail, list):  # FastAPI's own validation errors: [{"loc": ["body", "gpus"], "msg": ...}]
        parts = [_validation_error(entry) for entry in detail]
        field = field or (parts[0][0] if parts else None)
        detail = "; ".join(f"{where}: {message}" if where else message for where, message in parts)
    elif isinstance(detail, dict):  # Airflow's: {"reason": ..., "message": ...}
        detail = str(detail.get("message") or detail.get("reason") or detail)
    return str(detail), str(field) if field else None


def _validation_error(entry: Any) -> tuple[str, str]:
    if not isinstance(entry, dict):
        return "", str(entry)
    where = [str(part) for part in entry.get("loc", ())]
    if where and where[0] in ("body", "query", "path"):
        where = where[1:]
    return ".".join(where), str(entry.get("msg", entry))


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of a ``Retry-After`` header; None without one (or with a date, which nothing here sends)."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, seconds)


def connection_error(error: httpx.TransportError | httpx.InvalidURL, base_url: str) -> EmepConnectionError:
    """The transport's failure as one sentence that names the URL."""
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        text = f"no connection to {base_url} in time: is the address right and the network open?"
    elif isinstance(error, httpx.ConnectError):
        text = f"no connection to {base_url} ({_cause(error)}): is the API server running there?"
    elif isinstance(error, httpx.TimeoutException):
        text = f"{base_url} did not answer in time"
    elif isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        text = f"{base_url!r} is not the URL of an API (http://host:port)"
    else:
        text = f"the connection to {base_url} broke ({_cause(error)})"
    return EmepConnectionError(text, url=base_url)


def _cause(error: BaseException) -> str:
    """The operating system's own words, which httpx wraps twice."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno and seen.errno > 0:
            return os.strerror(seen.errno).lower()
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror.lower()
        seen = seen.__cause__ or seen.__context__
    text = str(error)
    return text.split("] ", 1)[-1].lower() if text else type(error).__name__
