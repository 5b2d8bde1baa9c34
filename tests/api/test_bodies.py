"""A body is read once its sender is known and may send it, and only so much, for so long, in so many pieces.

Over real sockets: what matters is what the server does before the bytes have come.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from tests.builders.real_api import RealApi, real_api

from emep.api import bodies
from emep.api.app import create_app
from emep.api.auth import PUBLIC_ENDPOINTS
from emep.api.guarded import GuardedRoute

from .test_auth import filled

SPEC = {"engine": "merge", "input": {}, "output_uri": "out"}
BASE = "/emep/api/v1"


@pytest.fixture
def served(tmp_path: Path, airflow_database: None) -> Iterator[RealApi]:
    with real_api(tmp_path) as api:
        yield api


class Wire:
    """One connection, on which a test sends what it likes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, method: str, path: str, *headers: str, token: str = "", body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: here", "Content-Type: application/json", *headers]
        lines += [f"Authorization: Bearer {token}"] if token else []
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def answer(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, json.loads(self.file.read(int(headers["content-length"])))

    def is_closed(self) -> bool:
        return self.file.read(1) == b""


def routes() -> list[tuple[str, str]]:
    found = []
    for route in create_app().routes:
        assert isinstance(route, GuardedRoute)
        assert isinstance(route, APIRoute)
        if route.endpoint not in PUBLIC_ENDPOINTS:
            found += [(method, filled(route.path)) for method in sorted(route.methods)]
    return found


def test_who_calls_is_asked_before_the_body_has_come(served: RealApi) -> None:
    assert len(routes()) > 20
    for method, path in routes():
        for token in ("", "nonsense", "emep-agent.wrong"):
            with Wire(served.port) as wire:
                wire.send(method, path, "Content-Length: 8000000", token=token)
                status, headers, problem = wire.answer()
                assert (status, problem["status"]) == (401, 401), f"{method} {path} {token}"
                assert headers["connection"] == "close"
                assert wire.is_closed()


FORBIDDEN = [
    ("viewer", "POST", "/jobs"),
    ("viewer", "POST", "/jobs:batch"),
    ("viewer", "PATCH", "/nodes/n0"),
    ("viewer", "POST", "/nodes/n0/drain"),
    ("viewer", "POST", "/nodes/n0/health"),
    ("viewer", "PUT", "/fair-share/queue:merge"),
    ("viewer", "POST", "/jobs/{job}/requeue"),
    ("viewer", "POST", "/allocations/{job}-1/lease"),
    ("viewer", "POST", "/allocations/{job}-1/lost"),
    ("viewer", "POST", "/allocations/{job}-1/heartbeat"),
    ("emep-agent.enrol", "POST", "/jobs"),
]


@pytest.mark.parametrize(("who", "method", "path"), FORBIDDEN)
def test_what_the_caller_may_is_asked_before_the_body_has_come(
    served: RealApi, token_of: Callable[[str], str], who: str, method: str, path: str
) -> None:
    served.node()
    job_id = httpx.post(
        f"{served.url}{BASE}/jobs",
        json={"spec": SPEC},
        headers={"Authorization": f"Bearer {token_of('alice')}"},
    ).json()["id"]
    served.order()
    token = who if who.startswith("emep-") else token_of(who)
    with Wire(served.port) as wire:
        wire.send(method, BASE + path.format(job=job_id), "Content-Length: 8000000", token=token)
        assert wire.answer()[0] == 403


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_may_have_so_many_bytes(
    served: RealApi, token_of: Callable[[str], str], declared: bool
) -> None:
    with Wire(served.port) as wire:
        if declared:
            wire.send("POST", f"{BASE}/jobs", "Content-Length: 2000000", token=token_of("alice"))
        else:
            wire.send("POST", f"{BASE}/jobs", "Transfer-Encoding: chunked", token=token_of("alice"))
            piece = b"%x\r\n" % 60_000 + b" " * 60_000 + b"\r\n"
            for _ in range(18):
                wire.socket.sendall(piece)
        status, headers, problem = wire.answer()
        assert (status, problem["code"]) == (413, "too_large")
        assert "1,048,576" in problem["detail"]
        assert headers["connection"] == "close"


@pytest.mark.parametrize("sent", [b"", b'{"spec": '], ids=["nothing", "the beginning"])
def test_a_body_that_does_not_come_is_given_up(
    served: RealApi, token_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(bodies, "SILENCE", 0.05)
    with Wire(served.port) as wire:
        wire.send("POST", f"{BASE}/jobs", "Content-Length: 1000", token=token_of("alice"), body=sent)
        status, headers, _ = wire.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert wire.is_closed()


def test_a_body_that_drips_is_given_up_though_it_is_never_silent(
    served: RealApi, token_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 0.2)
    answered = threading.Event()
    with Wire(served.port) as wire:
        wire.send("POST", f"{BASE}/jobs", "Content-Length: 1000000", token=token_of("alice"))

        def drip() -> None:
            while not answered.wait(0.02):
                try:
                    wire.socket.sendall(b" ")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert wire.answer()[0] == 408
        finally:
            answered.set()
            thread.join()


def test_a_refused_request_whose_body_has_come_leaves_the_connection_open(
    served: RealApi, token_of: Callable[[str], str]
) -> None:
    body = json.dumps({"spec": SPEC}).encode()
    with Wire(served.port) as wire:
        for token, expected in (("", 401), (token_of("viewer"), 403), (token_of("alice"), 201)):
            wire.send("POST", f"{BASE}/jobs", f"Content-Length: {len(body)}", token=token, body=body)
            status, headers, _ = wire.answer()
            assert status == expected
            assert "connection" not in headers


COSTLY = {
    "a million empty lists": b"[" + b"[]," * 300_000 + b"[]]",
    "commas": b'{"spec": {"engine": "merge", "input": [' + b"1," * 400_000 + b"1]}}",
    "keys": b'{"spec": {' + b",".join(b'"%d":1' % number for number in range(80_000)) + b"}}",
}
WRONG = {
    "nested": b'{"spec":' + b"[" * 200_000,
    "objects in objects": b'{"a":' * 60_000,
    "NaN": b'{"spec": {"engine": "merge", "seed": NaN}}',
    "an infinity": b'{"cpu": -Infinity}',
    "an infinity that is written as a number": b'{"spec": {"engine": "merge", "seed": 1e999}}',
    "no JSON": b'{"spec": ',
    "no text": b'{"spec": "\xff\xfe"}',
}


@pytest.mark.parametrize("name", [*COSTLY, *WRONG])
def test_what_costs_more_than_it_says_is_refused_with_a_sentence(
    served: RealApi, token_of: Callable[[str], str], name: str
) -> None:
    headers = {"Authorization": f"Bearer {token_of('alice')}", "Content-Type": "application/json"}
    answer = httpx.post(f"{served.url}{BASE}/jobs", content={**COSTLY, **WRONG}[name], headers=headers)
    assert answer.status_code == 422, answer.text[:300]
    assert answer.json()["detail"].startswith(("body: ", "spec"))


def test_costly_bodies_are_refused_without_being_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    for body in COSTLY.values():
        with pytest.raises(bodies.InvalidError, match="more than 65,536 values"):
            bodies.parse(body, bodies.DEFAULT_BYTES // bodies.BYTES_A_VALUE)


def test_a_large_body_is_parsed_and_checked_away_from_the_loop(
    served: RealApi, token_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.node()
    threads: dict[str, set[str]] = {"parse": set(), "check_storable": set()}
    for name in threads:
        original = getattr(bodies, name)

        def noted(*args: Any, _name: str = name, _original: Any = original) -> Any:
            threads[_name].add(threading.current_thread().name)
            return _original(*args)

        monkeypatch.setattr(bodies, name, noted)
    headers = {"Authorization": f"Bearer {token_of('alice')}"}
    large = {"spec": {**SPEC, "input": {"recipe": "x" * 100_000}}}
    answer = httpx.post(f"{served.url}{BASE}/jobs", json=large, headers=headers)
    assert answer.status_code == 201, answer.text[:300]
    assert all(name.startswith("AnyIO worker") for name in threads["parse"] | threads["check_storable"])
    assert threads["check_storable"]
    unstorable = {"spec": {**SPEC, "input": {"recipe": "x" * 100_000 + "\x00"}}}
    answer = httpx.post(f"{served.url}{BASE}/jobs", json=unstorable, headers=headers)
    assert (answer.status_code, "NUL" in answer.json()["detail"]) == (422, True)
    # What one request's check has found says nothing of the next one's.
    small = {"spec": {**SPEC, "seed": 2**70}}
    assert httpx.post(f"{served.url}{BASE}/jobs", json=small, headers=headers).status_code == 422
