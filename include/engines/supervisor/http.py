"""JSON over HTTP with the standard library alone, because importing a client library would delay the work."""

from __future__ import annotations

import http.client
import json
import os
import urllib.request
from typing import Any
from urllib.error import HTTPError

Answer = tuple[int, str, dict[str, Any]]
"""Status, its phrase, and the JSON object of the answer ({} where it is none)."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: what is sent goes where it was addressed to, or nowhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class JsonPost:
    """Posts JSON with the same headers to one API; safe for several threads.

    Every call has a connection of its own, since calls are further apart than servers keep one open. Proxies
    are those of the environment. ``timeout``: seconds that connecting, or the next piece of the answer, takes
    at most.
    """

    def __init__(self, url: str, headers: dict[str, str], timeout: float) -> None:
        self._url, self._timeout = url, timeout
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if url.startswith("https:"):
            handlers.append(_verifying())
        self._opener = urllib.request.build_opener(*handlers)

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """The answer, whatever its status. Raises OSError or HTTPException where there is none."""
        request = urllib.request.Request(  # noqa: S310 - the API's URL, from the process's starter
            self._url + path, json.dumps(body).encode(), self._headers, method="POST"
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return _read(answer)
        except HTTPError as refusal:
            with refusal:
                return _read(refusal)


def _read(answer: http.client.HTTPResponse | HTTPError) -> Answer:
    try:
        content = json.loads(answer.read())
    except ValueError:
        content = None
    return int(answer.status or 0), str(answer.reason), content if isinstance(content, dict) else {}


def _verifying() -> urllib.request.HTTPSHandler:
    """Trust what ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` says, else the certificates that the agent trusts."""
    import ssl

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and not folder:
        import certifi

        file = certifi.where()
    return urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=file, capath=folder))
