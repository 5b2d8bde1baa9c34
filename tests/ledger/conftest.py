"""Every test of the ledger runs on SQLite, and on PostgreSQL where ``EMEP_TEST_POSTGRES_URL`` names one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from tests.builders.ledger import Bench, sqlite_engine

from emep.ledger.tables import Base

POSTGRES_URL = os.environ.get("EMEP_TEST_POSTGRES_URL", "")


WITHOUT_POSTGRES = pytest.mark.skipif(
    not POSTGRES_URL, reason="EMEP_TEST_POSTGRES_URL is not set: the suite runs on SQLite only"
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=WITHOUT_POSTGRES)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database."""
    if request.param == "sqlite":
        made = sqlite_engine(str(tmp_path / "ledger.db"))
    else:
        made = create_engine(POSTGRES_URL, pool_size=20)
        with made.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))
    Base.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def bench(engine: Engine) -> Bench:
    """A ledger without nodes, under the default policy."""
    return Bench(engine)
