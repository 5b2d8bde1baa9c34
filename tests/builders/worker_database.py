"""A PostgreSQL database for each worker of pytest-xdist, beside that of ``EMEP_TEST_POSTGRES_URL``."""

from __future__ import annotations

import atexit
import os

from sqlalchemy import create_engine, make_url, text

VARIABLE = "EMEP_TEST_POSTGRES_URL"


def take_own_database() -> None:
    """Creates this worker's database, names it in the environment, and drops it when the worker ends.

    Does nothing without PostgreSQL, or where one process runs all tests.
    """
    given, worker = os.environ.get(VARIABLE), os.environ.get("PYTEST_XDIST_WORKER")
    if not given or not worker:
        return
    own = make_url(given)
    name = f"{own.database}_{worker}"
    _execute(given, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}"')
    os.environ[VARIABLE] = own.set(database=name).render_as_string(hide_password=False)
    atexit.register(_execute, given, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _execute(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
