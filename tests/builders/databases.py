"""Empty databases with EMEP's tables: SQLite, and PostgreSQL where ``EMEP_TEST_POSTGRES_URL`` names one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from tests.builders.ledger import sqlite_engine

from emep.ledger.store.tables import Base

POSTGRES_URL = os.environ.get("EMEP_TEST_POSTGRES_URL", "")
"""A database that may be emptied."""
WITHOUT_POSTGRES = pytest.mark.skipif(
    not POSTGRES_URL, reason="EMEP_TEST_POSTGRES_URL is not set: the suite runs on SQLite only"
)
DATABASES = ["sqlite", pytest.param("postgresql", marks=WITHOUT_POSTGRES)]
"""What a fixture of an engine is made for."""
_made_here: set[str] = set()
"""PostgreSQL databases whose tables were made by this process, so that they are today's."""


def empty_engine(url: str) -> Engine:
    """An engine on the database at ``url``, which loses everything that was in it."""
    if url.startswith("sqlite:///"):
        made = sqlite_engine(url.removeprefix("sqlite:///"))
    else:
        made = create_engine(url, pool_size=20)
        if url in _made_here and _emptied(made):
            return made
        with made.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
        _made_here.add(url)
    Base.metadata.create_all(made)
    return made


def _emptied(engine: Engine) -> bool:
    """Whether the tables were EMEP's and nobody else's: then their rows are gone, at a tenth of the price of
    making tables anew.
    """
    with engine.begin() as connection:
        if set(inspect(connection).get_table_names()) != set(Base.metadata.tables):
            return False
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
    return True


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[Engine]:
    """An engine on one of ``DATABASES``; SQLite's file is made in ``folder``."""
    made = empty_engine(f"sqlite:///{folder}/ledger.db" if kind == "sqlite" else POSTGRES_URL)
    try:
        yield made
    finally:
        made.dispose()
