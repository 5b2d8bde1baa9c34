"""The app as Airflow mounts it, with the simple auth manager's real tokens and a ledger of its own for each
test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from tests.builders.conformance import Conformance
from tests.builders.ledger import Bench, make_settings, spec_for, sqlite_engine

BASE = "/emep/api/v1"


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's own tables, which its tokens are checked against."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="session")
def token_of(airflow_database: None) -> Callable[[str], str]:
    """A real token of one of the users of tests/conftest.py."""
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.datamodels.login import LoginBody
    from airflow.api_fastapi.auth.managers.simple.services.login import SimpleAuthManagerLogin

    init_auth_manager()
    made: dict[str, str] = {}

    def token(name: str) -> str:
        if name not in made:
            made[name] = SimpleAuthManagerLogin.create_token(LoginBody(username=name, password=name))
        return made[name]

    return token


class Api:
    """The running app, and clients of everybody who may call."""

    def __init__(
        self, client: TestClient, app: FastAPI, bench: Bench, token_of: Callable[[str], str]
    ) -> None:
        self.client, self.app, self.bench, self._token_of = client, app, bench, token_of
        self.conformance = Conformance(app)

    @property
    def runtime(self) -> Any:
        return self.app.state.runtime

    def call(self, who: str | None, method: str, path: str, **options: Any) -> Any:
        """A request by a user, ``agent``, or a token; ``path`` is below /emep/api/v1 unless it begins with
        /emep.
        """
        headers = dict(options.pop("headers", {}))
        if who is not None:
            headers["Authorization"] = f"Bearer {self.token(who)}"
        url = path if path.startswith("/emep") else BASE + path
        answer = self.client.request(method, url, headers=headers, **options)
        self.conformance.check(method, answer.request.url.path.removeprefix("/emep"), answer)
        return answer

    def token(self, who: str) -> str:
        if who == "agent":
            return "emep-agent.enrol"
        return who if who.startswith("emep-") or who.count(".") == 2 else self._token_of(who)

    def submit(self, who: str = "alice", **fields: Any) -> Any:
        return self.call(who, "POST", "/jobs", json={"spec": spec_for(fields), **fields})

    def node(self, name: str = "n0", gpus: int = 4) -> None:
        self.bench.node(name, gpus)

    def granted(self, **fields: Any) -> tuple[dict[str, Any], str, str]:
        """A job that the running scheduler has granted: its start order, its allocation's path, its token."""
        answer = self.submit(**fields)
        assert answer.status_code == 201, answer.text
        poll = self.call("agent", "POST", "/nodes/n0/poll", json={"timeout": 30})
        (order,) = [order for order in poll.json()["orders"] if order["job_id"] == answer.json()["id"]]
        return order, f"/allocations/{order['allocation_id']}", order["lease_token"]


@pytest.fixture
def api(tmp_path: Path, token_of: Callable[[str], str]) -> Iterator[Api]:
    """EMEP below ``/emep`` of a root app with Airflow's own lifespan, scheduling in real time."""
    from airflow.api_fastapi.app import lifespan

    from emep.api.app import create_app
    from emep.api.runtime import Runtime

    engine = sqlite_engine(str(tmp_path / "ledger.db"))
    bench = Bench(engine)
    runtime = Runtime.build(engine, make_settings(), lambda: bench.policy, time.time)
    bench.database, bench.ledger = runtime.ledger.context.database, runtime.ledger
    app = create_app(runtime)
    root = FastAPI(lifespan=lifespan)
    root.mount("/emep", app)
    with TestClient(root, raise_server_exceptions=False) as client:
        yield Api(client, app, bench, token_of)
    engine.dispose()
