"""Every test of the ledger runs on SQLite, and on PostgreSQL where ``EMEP_TEST_POSTGRES_URL`` names one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.builders.databases import DATABASES, empty_database
from tests.builders.ledger import Bench


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database."""
    with empty_database(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def bench(engine: Engine) -> Bench:
    """A ledger without nodes, under the default policy."""
    return Bench(engine)
