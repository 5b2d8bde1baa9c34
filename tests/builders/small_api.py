"""A small REST API that speaks EMEP's schemas over real HTTP, for tests of those who call it.

It keeps what it was told and hands out the orders that a test puts in; it decides nothing. It can be taken
away and brought back on its port, as an API server that restarts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from tests.builders.ports import reserve_port

from emep.wire.allocations import Completion
from emep.wire.jobs import GpuRef
from emep.wire.nodes import HealthReport, NodeRequest, PollRequest, StartOrder, StopOrder

SECRET = "test-agent-secret"
BASE = "/emep/api/v1"


class SmallApi:
    """What it was told is in its attributes; ``until`` waits for them to become what a test expects."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.nodes: dict[str, NodeRequest] = {}
        self.health: dict[str, list[HealthReport]] = {}
        self.orders: list[StartOrder | StopOrder] = []
        self.polls: list[PollRequest] = []
        self.completions: dict[tuple[str, int], list[Completion]] = {}
        self.logs: dict[str, bytearray] = {}
        self.closed_logs: list[str] = []
        self.refuse_completions: dict[str, int] = {}
        """Allocation -> status that its completion is answered with."""
        self.bearers: list[tuple[str, str]] = []
        self.app = self._application()
        self.port = reserve_port()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """What ``EMEP_API_URL`` is."""
        return f"http://127.0.0.1:{self.port}{BASE}"

    # --- for tests ------------------------------------------------------------------------------------------

    def start(self) -> SmallApi:
        """Serve on the port; returns once it answers."""
        config = uvicorn.Config(
            self.app, host="127.0.0.1", port=self.port, log_level="warning", timeout_graceful_shutdown=1
        )
        self._server = server = uvicorn.Server(config)
        self._thread = thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError(f"nothing can be served on port {self.port}")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """Stop serving; what was told is kept."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        with self.changed:
            self._server = self._thread = None
            self.changed.notify_all()
        server.should_exit = True
        thread.join(60)

    def until(self, condition: Callable[[], Any], timeout: float = 300.0) -> Any:
        """Wait until ``condition`` is true and return its value. Raises TimeoutError with what is known."""
        with self.changed:
            if not self.changed.wait_for(condition, timeout):
                raise TimeoutError(
                    f"orders={self.orders} polls={self.polls[-2:]} completions={self.completions} "
                    f"logs={ {k: bytes(v[-400:]) for k, v in self.logs.items()} }"
                )
            return condition()

    def give(self, order: StartOrder | StopOrder) -> None:
        """Hand out an order from now on."""
        with self.changed:
            self.orders.append(order)
            self.changed.notify_all()

    def forget_orders(self) -> None:
        """Hand out no order any more; what was taken is the agent's."""
        with self.changed:
            self.orders.clear()

    def forget_completions(self) -> None:
        """Know no end of any run, as after the database was restored: orders are due again."""
        with self.changed:
            self.completions.clear()
            self.changed.notify_all()

    def log_text(self, allocation_id: str) -> str:
        """The log that was shipped so far."""
        return self.logs.get(allocation_id, bytearray()).decode()

    def ended(self, allocation_id: str, epoch: int = 1, timeout: float = 300.0) -> Completion:
        """Wait for the first completion of a run."""
        key = (allocation_id, epoch)
        return self.until(lambda: self.completions.get(key), timeout)[0]

    def running_now(self) -> set[tuple[str, int]]:
        """What the last poll said."""
        last = self.polls[-1].running if self.polls else []
        return {(entry.allocation_id, entry.epoch) for entry in last}

    # --- the routes -----------------------------------------------------------------------------------------

    def _told(self, change: Callable[[], Any]) -> Any:
        with self.changed:
            value = change()
            self.changed.notify_all()
            return value

    def _due(self, request: PollRequest) -> list[StartOrder | StopOrder]:
        running = {(entry.allocation_id, entry.epoch) for entry in request.running}
        return [
            order
            for order in self.orders
            if ((order.allocation_id, order.epoch) in running) == (order.kind == "stop")
            and (order.allocation_id, order.epoch) not in self.completions
        ]

    def _application(self) -> FastAPI:
        app = FastAPI()
        app.middleware("http")(self._authenticate)
        app.post(f"{BASE}/nodes")(self._register)
        app.post(f"{BASE}/nodes/{{name}}/health")(self._health)
        app.post(f"{BASE}/nodes/{{name}}/poll")(self._poll)
        app.post(f"{BASE}/allocations/{{allocation}}/logs")(self._append)
        app.post(f"{BASE}/allocations/{{allocation}}/complete")(self._complete)
        return app

    async def _authenticate(self, request: Request, call_next: Any) -> Any:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.bearers.append((request.url.path, bearer))
        wanted = "emep-lease.lease-" if "/allocations/" in request.url.path else f"emep-agent.{SECRET}"
        if not bearer.startswith(wanted):
            return problem(401, "Not authenticated", "the token is not known")
        return await call_next(request)

    async def _register(self, node: NodeRequest) -> dict[str, Any]:
        self._told(lambda: self.nodes.update({node.name: node}))
        unknown = dict.fromkeys(("utilization", "temperature_c", "memory_used", "job_id"))
        state = {"state": "healthy", "state_reason": "", **unknown}
        gpus = [{**gpu.model_dump(), **state} for gpu in node.gpus]
        return {**node.model_dump(), "gpus": gpus, "alive": True, "last_report_at": None}

    async def _health(self, name: str, report: HealthReport) -> Any:
        if name not in self.nodes:
            return problem(404, "Not found", f"there is no node {name}")
        known = {gpu.index for gpu in self.nodes[name].gpus}
        if unknown := {gpu.index for gpu in report.gpus} - known:
            return problem(422, "Invalid", f"node {name} has no GPU {min(unknown)}", field="gpus")
        self._told(lambda: self.health.setdefault(name, []).append(report))
        return {}

    async def _poll(self, name: str, request: PollRequest) -> Any:
        if name not in self.nodes:
            return problem(404, "Not found", f"there is no node {name}")
        self._told(lambda: self.polls.append(request))
        orders = await asyncio.to_thread(self._wait_for_orders, request)
        return {"orders": [order.model_dump(mode="json") for order in orders]}

    def _wait_for_orders(self, request: PollRequest) -> list[StartOrder | StopOrder]:
        with self.changed:
            self.changed.wait_for(lambda: self._due(request) or self._server is None, request.timeout)
            return self._due(request)

    async def _append(self, allocation: str, offset: int, request: Request, final: bool = False) -> Any:
        body = await request.body()
        have = self.logs.setdefault(allocation, bytearray())
        if offset > len(have):
            return problem(409, "Gap", f"the log ends at {len(have)}", expected_offset=len(have))
        self._told(lambda: have.extend(body[len(have) - offset :]))
        if final:
            self._told(lambda: self.closed_logs.append(allocation))
        return {"next_offset": len(have)}

    async def _complete(self, allocation: str, completion: Completion) -> Any:
        key = (allocation, completion.epoch)
        self._told(lambda: self.completions.setdefault(key, []).append(completion))
        if status := self.refuse_completions.get(allocation):
            return problem(status, "Refused", "this epoch is over")
        return {}


def problem(status: int, title: str, detail: str, **more: Any) -> JSONResponse:
    """An RFC 9457 problem document."""
    document = {"type": "about:blank", "status": status, "title": title, "detail": detail, **more}
    return JSONResponse(document, status, media_type="application/problem+json")


def start_order(
    allocation_id: str,
    *,
    node: str = "n1",
    gpus: tuple[int, ...] = (0,),
    epoch: int = 1,
    steps: list[Any] | None = None,
    **more: Any,
) -> StartOrder:
    """An order for the test engine (``tests/builders/steps_engine.py``), which carries out ``steps``."""
    return StartOrder(
        allocation_id=allocation_id,
        job_id=f"job-{allocation_id}",
        epoch=epoch,
        lease_token=f"lease-{allocation_id}-{epoch}",
        gpus=[GpuRef(node=node, index=index, uuid=f"SIM-{node}-{index}") for index in gpus],
        spec={"engine": "steps", "input": {"steps": steps or []}, "output_uri": "none"},
        environment={"EMEP_CHECKPOINT_URI": "file:///tmp/ckpt", "TRACEPARENT": "00-trace"},
        cpu=1,
        memory=1 << 30,
        **more,
    )
