"""Whether what a route answers is what the API's OpenAPI document says."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from starlette.routing import Match

MOST_BYTES = 100_000
"""Longer bodies are not looked into: they are long lists of what shorter ones show."""


class Conformance:
    """Checks answers of one app; ``seen`` has each operation and status that was checked."""

    def __init__(self, app: FastAPI) -> None:
        self.document = app.openapi()
        self.routes = [route for route in app.routes if isinstance(route, APIRoute)]
        self.seen: set[tuple[str, str, int]] = set()
        self._validator = lru_cache(self._make_validator)

    def check(self, method: str, path: str, answer: Any) -> None:
        """Raise AssertionError where the document does not name this answer; ``path`` is the app's own."""
        route = self._route(method, path)
        if route is None or not route.include_in_schema:
            assert answer.status_code in (404, 405) or route is not None, f"{method} {path}"
            return
        operation = self.document["paths"][route.path_format][method.lower()]
        status = str(answer.status_code)
        where = f"{method} {route.path_format} answers {status}"
        assert status in operation["responses"], f"{where}, which is not documented: {answer.text[:300]}"
        self.seen.add((method, route.path_format, answer.status_code))
        content = operation["responses"][status].get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if not content:
            assert answer.content == b"", where
            return
        assert kind in content, f"{where} as {kind}, not as {list(content)}"
        if kind.endswith("json") and len(answer.content) < MOST_BYTES:
            for error in self._validator(route.path_format, method, status, kind).iter_errors(answer.json()):
                raise AssertionError(f"{where}: {error.json_path}: {error.message[:300]}")

    def _route(self, method: str, path: str) -> APIRoute | None:
        scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
        for route in self.routes:
            if route.matches(scope)[0] is Match.FULL:
                return route
        return None

    def _make_validator(self, path: str, method: str, status: str, kind: str) -> Draft202012Validator:
        content = self.document["paths"][path][method.lower()]["responses"][status]["content"]
        return Draft202012Validator({**content[kind]["schema"], "components": self.document["components"]})
