"""EMEP's own API with Airflow's own simple auth manager, served over HTTP from the test's process.

A test plays the node's agent and the supervisor through the API too, so it decides when a job starts, logs
and ends. Users and their passwords are those of ``tests/conftest.py``.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from tests.builders.ledger import make_settings, sqlite_engine

from emep.api.app import create_app
from emep.api.runtime import Runtime
from emep.client import EmepClient, agent_token, lease_token
from emep.client.config import settings as client_settings
from emep.wire.allocations import Completion, Heartbeat
from emep.wire.jobs import JobView
from emep.wire.nodes import GpuReport, NodeRequest, PollRequest, StartOrder


class Serving:
    """One application on one port, which may be taken away and brought back."""

    def __init__(self, app: FastAPI) -> None:
        self._app, self.port = app, 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve on the port of before; the first time on a free one."""
        # The server gets the socket itself: a port that is free now may be somebody's a moment later.
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(self._app, log_level="warning", timeout_graceful_shutdown=1)
        self._server = server = uvicorn.Server(config)
        self._thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        self._thread.start()
        while not server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        """Serve no more; returns once nothing listens."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(60)


class RealApi:
    """The server, and short words for what an agent does."""

    def __init__(self, serving: Serving, runtime: Runtime) -> None:
        self._serving = serving
        self.port = port = serving.port
        self.runtime = runtime
        self.url = f"http://127.0.0.1:{port}"
        self.agent = EmepClient(self.url, auth=agent_token(runtime.settings.agent_token))
        self.user = EmepClient(client_settings(self.url, username="emep", password="emep"))
        self._holders: list[EmepClient] = []

    def take_away(self) -> None:
        """Nothing answers any more; the ledger stays as it is."""
        self._serving.stop()

    def bring_back(self) -> None:
        """Answer again, on the same port."""
        self._serving.start()

    def close(self) -> None:
        """Close every client that was handed out."""
        for client in (self.agent, self.user, *self._holders):
            client.close()

    def connection(self, login: str = "emep") -> str:
        """The value of ``AIRFLOW_CONN_...`` for a user."""
        fields = {"conn_type": "http", "host": "127.0.0.1", "schema": "http", "port": self.port}
        return json.dumps({**fields, "login": login, "password": login})

    def node(self, name: str = "n0", gpus: int = 4) -> None:
        """Register a node with GPUs in one NVLink group."""
        reports = [
            GpuReport(index=i, uuid=f"{name}-{i}", gpu_type="H100", gpu_memory="80Gi", nvlink_group_id=name)
            for i in range(gpus)
        ]
        self.agent.register_node(NodeRequest(name=name, cpu=16, memory="64Gi", gpus=reports))

    def order(self, name: str = "n0") -> StartOrder:
        """Wait for the next start order."""
        until = time.monotonic() + 180
        while time.monotonic() < until:
            for order in self.agent.poll(name, PollRequest(timeout=2)).orders:
                if isinstance(order, StartOrder):
                    return order
        raise AssertionError("no order came")

    def begin(self, order: StartOrder, log: str = "") -> EmepClient:
        """The supervisor's first heartbeat, and a first piece of log; its client."""
        holder = EmepClient(self.url, auth=lease_token(order.lease_token))
        self._holders.append(holder)
        holder.heartbeat(order.allocation_id, Heartbeat(epoch=order.epoch))
        if log:
            holder.append_logs(order.allocation_id, 0, log.encode())
        return holder

    def end(
        self,
        order: StartOrder,
        exit_code: int = 0,
        result: dict[str, Any] | None = None,
        log: str = "",
        message: str | None = None,
    ) -> JobView:
        """Begin if it has not, log, complete."""
        holder = self.begin(order, log)
        if log:
            holder.append_logs(order.allocation_id, len(log.encode()), b"", final=True)
        return holder.complete(
            order.allocation_id,
            Completion(epoch=order.epoch, exit_code=exit_code, result=result, message=message),
        )


@contextmanager
def real_api(folder: Path) -> Iterator[RealApi]:
    """Serve while the block lasts, with the ledger in ``folder``."""
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.models.revoked_token import RevokedToken
    from airflow.settings import get_engine

    from emep.ledger.store.tables import Base

    # The only table of Airflow's that its authentication reads.
    RevokedToken.__table__.create(get_engine(), checkfirst=True)
    engine = sqlite_engine(str(folder / "ledger.db"))
    Base.metadata.create_all(engine)
    runtime = Runtime.build(engine, make_settings())
    emep = create_app(runtime)
    emep.state.runtime = runtime
    root = FastAPI()
    init_auth_manager(root)
    root.mount("/emep", emep)
    serving = Serving(root)
    runtime.start()
    serving.start()
    api = RealApi(serving, runtime)
    try:
        yield api
    finally:
        api.close()
        runtime.stop()
        serving.stop()
        engine.dispose()
