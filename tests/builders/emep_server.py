"""EMEP's real API as a process of its own: the ledger on SQLite, the scheduler, Airflow's own logins.

``python emep_server.py DIR PORT`` serves the app that the plugin mounts, beside Airflow's auth manager,
without the rest of Airflow. ``EmepServer`` starts that process, ends it, and starts it again on its data.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.builders.ports import reserve_port

AGENT_SECRET = "enrol-me-in-tests"
GRACE_SECONDS = 3
DATABASE_URL = "EMEP_SERVER_DATABASE_URL"
"""The ledger's database where it is not SQLite in the server's folder."""
POLICY = "EMEP_SERVER_POLICY"
"""The text of another policy than the tests' own."""
TICK = "EMEP_SERVER_TICK_SECONDS"
"""How often to look at time-outs: tests wait for them, so more often than by default."""
POLICY_FILE = "EMEP_SERVER_POLICY_FILE"
"""A policy other than the default with a short grace."""
USERS = {
    "admin": "admin-password",
    "viewer": "viewer-password",
    "alice": "alice-password",
    "bob": "bob-password",
}


def serve(folder: Path, port: int) -> None:
    """Serve until SIGTERM."""
    (folder / "passwords.json").write_text(json.dumps(USERS))
    os.environ.update(
        {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer,alice:user,bob:user",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test server only",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        }
    )
    import contextlib
    from collections.abc import AsyncIterator

    import uvicorn
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.models.revoked_token import RevokedToken
    from airflow.settings import get_engine
    from fastapi import FastAPI
    from sqlalchemy import create_engine
    from tests.builders.ledger import make_settings, sqlite_engine

    from emep.api.app import create_app
    from emep.api.runtime import Runtime
    from emep.ledger.store.tables import Base
    from emep.policy.load import parse_policy_text

    url = os.environ.get(DATABASE_URL)
    engine = create_engine(url, pool_size=20) if url else sqlite_engine(str(folder / "emep.db"))
    Base.metadata.create_all(engine)
    files = {
        name: (folder / name.split("_")[0]).as_uri()
        for name in ("checkpoint_uri", "artifact_uri", "tracker_uri")
    }
    settings = make_settings(
        agent_token=AGENT_SECRET,
        # The account that operators of the tests ask through.
        service_user="admin",
        extra_engines=("chaos_steps",),
        tick_seconds=float(os.environ.get(TICK, "0.2")),
        **files,
    )
    # Tests wait for the end of a grace; two minutes would be long.
    file = os.environ.get(POLICY_FILE)
    text = Path(file).read_text() if file else f"preemption: {{grace_period: {GRACE_SECONDS}s}}"
    if "roots:" not in text:
        # The tests' own files, wherever below the temporary folder each has its own.
        text += f"\nroots: {{read: [{tempfile.gettempdir()}], write: [{tempfile.gettempdir()}]}}\n"
    policy = parse_policy_text(text, file or "test policy")
    emep = create_app(Runtime.build(engine, settings, policy=lambda: policy))

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with emep.router.lifespan_context(emep):
            yield

    # The one table of Airflow's that its logins look into.
    RevokedToken.__table__.create(get_engine(), checkfirst=True)
    outer = FastAPI(lifespan=lifespan)
    init_auth_manager(outer)
    outer.mount("/emep", emep)
    uvicorn.run(outer, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=2)


class EmepServer:
    """The server's process, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        database_url: str | None = None,
        policy: str | None = None,
        tick_seconds: float | None = None,
    ) -> None:
        self.folder = folder
        tick = None if tick_seconds is None else str(tick_seconds)
        given = {DATABASE_URL: database_url, POLICY: policy, TICK: tick}
        self._variables = {name: value for name, value in given.items() if value}
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, patience: float = 300.0) -> EmepServer:
        """Start it; returns once it answers. Raises RuntimeError with its output if it does not."""
        root = Path(__file__).parents[2]
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.builders.emep_server", str(self.folder), str(self.port)],
                cwd=root,
                env={**os.environ, **self._variables},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + patience
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    @property
    def pid(self) -> int:
        """The process; RuntimeError where it does not run."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def _answers(self) -> bool:
        import httpx

        try:
            return httpx.get(f"{self.url}/emep/health", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """End it; its data stay."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def environment(self, user: str = "admin") -> dict[str, str]:
        """What a command line needs to call it."""
        return {"EMEP_API_URL": self.url, "EMEP_USERNAME": user, "EMEP_PASSWORD": USERS[user]}


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
