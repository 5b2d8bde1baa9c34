"""A port on which nobody listens, and a server whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.builders.ports import reserve_port


@pytest.fixture
def unused_port() -> int:
    return reserve_port()


@dataclass
class Answer:
    """One HTTP answer; ``drop``: close the connection without one."""

    status: int = 200
    document: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False


@dataclass
class Seen:
    """One request as it came."""

    method: str
    path: str
    authorization: str
    body: bytes


class ScriptedServer:
    """Real HTTP; ``answer(request)`` decides."""

    def __init__(self, answer: Callable[[Seen], Answer]) -> None:
        self.seen: list[Seen] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                seen = Seen(self.command, self.path, self.headers.get("authorization", ""), body)
                outer.seen.append(seen)
                reply = answer(seen)
                if reply.drop:
                    self.close_connection = True
                    return
                content = b"" if reply.document is None else json.dumps(reply.document).encode()
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[Seen], Answer]], ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(answer: Callable[[Seen], Answer]) -> ScriptedServer:
        servers.append(ScriptedServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
