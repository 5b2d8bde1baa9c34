"""Writes that a session's cookie authenticates must come from a page of this very site.

A browser adds the cookie to every request that any page makes it send, and it names that page truthfully in
``Sec-Fetch-Site`` and ``Origin``. Only its owner's program sends a bearer token, so tokens are not checked.
"""

from __future__ import annotations

from functools import cache
from urllib.parse import urlsplit

from fastapi import Request

from emep.wire.errors import ForbiddenError

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_origin(request: Request) -> None:
    """Raise ForbiddenError if a write without a token does not come from this site's own pages."""
    if request.method in _READS or not request.cookies:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        raise _refusal(f"it comes from another page (Sec-Fetch-Site: {site[:40]})")
    if origin is not None and site is None and not _is_own(origin, request.headers.get("host", "")):
        raise _refusal(f"it comes from {origin[:200]}")
    if origin is None and site is None:
        raise _refusal("it does not say from which page it comes (no Origin, no Sec-Fetch-Site)")


def _refusal(why: str) -> ForbiddenError:
    return ForbiddenError(
        f"a write with the session's cookie is refused: {why}. Send it from Airflow's own pages, or send "
        "Authorization: Bearer TOKEN, with a token from POST /auth/token",
        code="foreign_origin",
    )


def _is_own(origin: str, host: str) -> bool:
    own = _base_origin()
    if own is not None and origin.lower() == own:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as a bracket without its end: no page of a browser's
        return False
    # Behind a proxy that ends TLS the scheme of this connection says nothing about the page's.
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


@cache
def _base_origin() -> str | None:
    """Where browsers find Airflow: ``[api] base_url``, for proxies that do not pass ``Host`` on."""
    from airflow.configuration import conf

    parts = urlsplit(str(conf.get("api", "base_url", fallback="") or ""))
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else None
