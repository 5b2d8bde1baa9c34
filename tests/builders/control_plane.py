"""The API's side of a lease over real HTTP, on a free port: records what comes, answers as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, Any]]
CONTINUE: Answer = (200, {"directive": "continue", "lease_seconds": 60.0})


class ControlPlane:
    """Heartbeats and completions as they came; ``heartbeat`` and ``complete`` decide the answers."""

    def __init__(self) -> None:
        self.heartbeats: list[dict[str, Any]] = []
        self.completions: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.paths: set[str] = set()
        self.heartbeat: Callable[[int, dict[str, Any]], Answer] = lambda number, body: CONTINUE
        self.complete: Callable[[int, dict[str, Any]], Answer] = lambda number, body: (200, {})
        self.changed = threading.Condition()
        self.url = ""

    def wait_for(self, condition: Callable[[], bool], timeout: float = 180) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout), "it did not happen in time"

    def handle(self, path: str, token: str | None, body: dict[str, Any]) -> Answer:
        with self.changed:
            self.tokens.add(token)
            self.paths.add(path)
            kept, decide = (
                (self.heartbeats, self.heartbeat)
                if path.endswith("/heartbeat")
                else (self.completions, self.complete)
            )
            kept.append(body)
            answer = decide(len(kept), body)
            self.changed.notify_all()
            return answer


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """A control plane that serves until the block ends."""
    plane = ControlPlane()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = plane.handle(self.path, self.headers["Authorization"], body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    plane.url = f"http://127.0.0.1:{server.server_address[1]}/emep/api/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield plane
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
