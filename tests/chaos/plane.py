"""A control plane alone: EMEP's API server with its scheduler, on SQLite or PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlalchemy import Engine, create_engine, text
from tests.builders.emep_server import AGENT_SECRET, DATABASE_URL, POLICY_FILE, USERS
from tests.builders.ledger import sqlite_engine
from tests.builders.ports import reserve_port
from tests.chaos.model import TaskRow
from tests.chaos.processes import MARK, Found
from tests.chaos.services import Service, Services, clean_environment
from tests.chaos.settings import ChaosSettings

from emep.client import EmepClient
from emep.client.config import settings as client_settings
from emep.client.retry import NO_RETRY

ROOT = Path(__file__).resolve().parents[2]


class ApiPlane:
    """Level 1: cheap, so that most kills happen here."""

    agent_secret = AGENT_SECRET

    def __init__(self, settings: ChaosSettings) -> None:
        self.settings = settings
        self._ports: dict[str, int] = {}
        for number in range(settings.servers):
            self._ports[f"api-server-{number}"] = reserve_port(*settings.ports)
        self.daemons = self.servers = tuple(self._ports)
        self.urls = tuple(f"http://127.0.0.1:{port}" for port in self._ports.values())
        self.environment = {
            **clean_environment(),
            MARK: str(settings.folder),
            POLICY_FILE: str(settings.policy_file()),
            "OMP_NUM_THREADS": "1",
        }
        if settings.database_url:
            self.environment[DATABASE_URL] = settings.database_url

    def start(self, services: Services) -> None:
        """Start it and wait until it answers."""
        if self.settings.database_url:
            with opened(self.settings.database_url) as engine, engine.begin() as connection:
                connection.execute(text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
        folder = self.settings.folder
        for name, port in self._ports.items():
            argv = [sys.executable, "-m", "tests.builders.emep_server", str(folder), str(port)]
            log = folder / "logs" / f"{name}.log"
            services.add(Service(name, "api-server", argv, self.environment, ROOT, log, self.answers))
            # One after the other: the first makes the tables.
            services.wait_ready([name])

    def answers(self, server: Service) -> bool:
        """Whether a server takes calls."""
        url = f"http://127.0.0.1:{self._ports[server.name]}/emep/health"
        try:
            return httpx.get(url, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def victims(self) -> list[Found]:
        """Nothing beside the daemon itself."""
        return []

    def unstick(self) -> bool:
        """There is nothing that an operator would have to do."""
        return False

    def tasks(self, engine: Engine) -> list[TaskRow]:
        """There is no Airflow."""
        return []

    def client(self) -> EmepClient:
        """An administrator's client, which does not repeat by itself."""
        return EmepClient(
            client_settings(self.urls[0], username="admin", password=USERS["admin"]), retry=NO_RETRY
        )

    def database(self) -> Engine:
        """The ledger's database."""
        if self.settings.database_url:
            return create_engine(self.settings.database_url)
        return sqlite_engine(str(self.settings.folder / "emep.db"))


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """An engine that is disposed of at the end of the block."""
    engine = create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()
