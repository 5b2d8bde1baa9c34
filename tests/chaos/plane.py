"""A control plane alone: EMEP's API server with its scheduler, on SQLite or PostgreSQL."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from sqlalchemy import Engine, create_engine, text
from tests.builders.emep_server import AGENT_SECRET, DATABASE_URL, POLICY_FILE, USERS
from tests.builders.ledger import sqlite_engine
from tests.chaos.model import TaskRow
from tests.chaos.processes import MARK, Found
from tests.chaos.services import Service, Services, clean_environment
from tests.chaos.settings import POLICY, ChaosSettings

from emep.client import EmepClient
from emep.client.config import settings as client_settings
from emep.client.retry import NO_RETRY

ROOT = Path(__file__).resolve().parents[2]


def free_port(first: int, last: int) -> int:
    """A port of the range that nobody listens on. Raises RuntimeError where there is none."""
    for port in range(first, last + 1):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port of {first}..{last} is free")


class ApiPlane:
    """Level 1: cheap, so that most kills happen here."""

    daemons = ("api-server",)
    agent_secret = AGENT_SECRET

    def __init__(self, settings: ChaosSettings) -> None:
        self.settings = settings
        self.port = free_port(*settings.ports)
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **clean_environment(),
            MARK: str(settings.folder),
            POLICY_FILE: str(POLICY),
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
        argv = [sys.executable, "-m", "tests.builders.emep_server", str(folder), str(self.port)]
        services.add(
            Service(
                "api-server",
                "api-server",
                argv,
                self.environment,
                ROOT,
                folder / "logs" / "api-server.log",
                self.answers,
            )
        )
        services.wait_ready(["api-server"])

    def answers(self, _: Service) -> bool:
        """Whether the API takes calls."""
        try:
            return httpx.get(f"{self.url}/emep/health", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def victims(self) -> list[Found]:
        """Nothing beside the daemon itself."""
        return []

    def tasks(self, engine: Engine) -> list[TaskRow]:
        """There is no Airflow."""
        return []

    def client(self) -> EmepClient:
        """An administrator's client, which does not repeat by itself."""
        return EmepClient(
            client_settings(self.url, username="admin", password=USERS["admin"]), retry=NO_RETRY
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
