"""EMEP in a real ``airflow api-server``: mounted by the plugin, migrated by Airflow, killed, restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.builders.ports import reserve_port

pytestmark = pytest.mark.airflow
AIRFLOW = str(Path(sys.executable).with_name("airflow"))


class Server:
    """One API server process with a home of its own; ``start`` after ``kill`` is a restart."""

    def __init__(self, home: Path) -> None:
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / "api-server.log"
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__EMEP__AGENT_TOKEN": "enrol",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def migrate(self) -> None:
        subprocess.run([AIRFLOW, "db", "migrate"], env=self.environment, check=True, capture_output=True)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [AIRFLOW, "api-server"], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/emep/health", timeout=5).json()["ok"]:
                    return
            except (httpx.HTTPError, KeyError, ValueError):
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-3000:])

    def end(self, number: int) -> int:
        assert self.process is not None
        os.killpg(self.process.pid, number)
        return self.process.wait(60)

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.url}/emep/api/v1", headers=headers, timeout=40)

    def user(self, name: str) -> httpx.Client:
        answer = httpx.post(f"{self.url}/auth/token", json={"username": name, "password": name}, timeout=40)
        return self.client(answer.json()["access_token"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.migrate()
    made.start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.end(signal.SIGKILL)


def test_a_job_survives_the_servers_death_and_a_stopping_server_answers_its_polls(server: Server) -> None:
    user, agent = server.user("alice"), server.client("emep-agent.enrol")
    node: dict[str, Any] = {"name": "n0", "gpus": [{"index": 0, "uuid": "SIM-0", "gpu_type": "sim"}]}
    assert agent.post("/nodes", json=node).status_code == 201
    job = user.post("/jobs", json={"spec": {"engine": "merge"}}).json()
    (order,) = agent.post("/nodes/n0/poll", json={"timeout": 30}).json()["orders"]
    at, lease = f"/allocations/{order['allocation_id']}", server.client(order["lease_token"])
    assert lease.post(f"{at}/heartbeat", json={"epoch": 1}).json()["directive"] == "continue"

    server.end(signal.SIGKILL)
    server.start()

    assert user.get(f"/jobs/{job['id']}").json()["state"] == "running"
    assert lease.post(f"{at}/heartbeat", json={"epoch": 1}).json()["directive"] == "continue"
    running = [{"allocation_id": order["allocation_id"], "epoch": 1}]
    assert agent.post("/nodes/n0/poll", json={"running": running, "timeout": 0}).json()["orders"] == []
    done = lease.post(f"{at}/complete", json={"epoch": 1, "exit_code": 0})
    assert done.json()["state"] == "completed"

    with ThreadPoolExecutor(2) as pool:
        poll = pool.submit(agent.post, "/nodes/n0/poll", json={"timeout": 30})
        watch = pool.submit(user.get, "/jobs:changes", params={"since": 2**40, "timeout": 30})
        user.get(
            "/nodes"
        )  # both waits have arrived before this was answered, or arrive at a server that stops
        started = time.monotonic()
        assert server.end(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert time.monotonic() - started < 25, "it waited for the long polls to run out"
        for answer in (poll, watch):
            with suppress(httpx.HTTPError):  # where it had not been taken in yet
                assert answer.result(30).status_code == 200


def test_behind_airflows_own_middleware_strangers_cost_little(server: Server) -> None:
    """Before the body is read they are refused, with a session's cookie too; who says nothing is cut off."""
    silent = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    answer = httpx.post(
        f"{server.url}/auth/token", json={"username": "alice", "password": "alice"}, timeout=40
    )
    cookie = f"Cookie: _token={answer.json()['access_token']}\r\nOrigin: https://evil.example\r\n"
    for header, status in (("", 401), (cookie, 403)):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            request = f"POST /emep/api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{header}"
            request += "Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n"
            connection.sendall(request.encode())
            said = b""
            while piece := connection.recv(10_000):  # to the end: the server closes the connection
                said += piece
            assert said.startswith(f"HTTP/1.1 {status} ".encode()), said[:300]
            assert b"application/problem+json" in said
    with silent:
        assert silent.recv(100) == b"", "half open for longer than headers may take"
