"""What every figure of the control plane needs: a database, a server, and the line that says it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, make_url
from tests.benchmarks.ledger.load import Cpu
from tests.benchmarks.ledger.seed import seed
from tests.builders.databases import POSTGRES_URL, empty_engine
from tests.builders.emep_server import EmepServer

SECONDS = float(os.environ.get("EMEP_BENCH_SECONDS", "20"))
"""How long each load lasts."""
POLICY = "health: {report_every: 1h}"
"""The seeded nodes have no agents, and are to stay alive without."""

Loaded = tuple[Engine, str, list[str], Path]
Served = tuple[Engine, EmepServer, Cpu, list[str]]


def say(kind: str, name: str, value: float, unit: str, limit: float | None = None, note: str = "") -> None:
    """One line: the figure, and what part of its limit it is."""
    share = "" if limit is None else f"{value / limit:7.1%} of {limit:g} {unit}"
    print(f"{kind:10} {name:46} {value:9.3f} {unit:4} {share:24} {note}".rstrip(), flush=True)


def databases() -> list[str]:
    """SQLite, and PostgreSQL where there is one."""
    return ["sqlite", *(["postgresql"] if POSTGRES_URL else [])]


def database_url(kind: str, folder: str | Path) -> str:
    """Where it is; SQLite's file is in ``folder``."""
    return f"sqlite:///{folder}/emep.db" if kind == "sqlite" else POSTGRES_URL


@contextmanager
def loaded(kind: str, nodes: int, pending: int, **load: float) -> Iterator[Loaded]:
    """A seeded database: engine, URL, allocations that run, and a folder for the server."""
    with tempfile.TemporaryDirectory(prefix="emep-bench-") as name:
        url = database_url(kind, name)
        engine = empty_engine(url)
        running = seed(engine, nodes, pending, **load)  # type: ignore[arg-type]
        try:
            yield engine, url, running, Path(name)
        finally:
            engine.dispose()


@contextmanager
def served(kind: str, nodes: int, pending: int, **load: float) -> Iterator[Served]:
    """A seeded database with the API server's process on it."""
    with loaded(kind, nodes, pending, **load) as (engine, url, running, folder):
        server = EmepServer(folder, None if kind == "sqlite" else url, POLICY, tick_seconds=1.0).start()
        try:
            yield engine, server, Cpu(server.pid, database_name(kind)), running
        finally:
            server.stop()


def database_name(kind: str) -> str:
    """PostgreSQL's, whose processes are counted; empty for SQLite."""
    return "" if kind == "sqlite" else make_url(POSTGRES_URL).database or ""
