"""Runs EMEP's migrations on Airflow's database, or on the connection that a test passes in ``attributes``."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from emep.ledger.store.tables import Base

VERSION_TABLE = "alembic_version_emep"
config = context.config


def include_object(_object: object, name: str | None, kind: str, *_: object) -> bool:
    """EMEP's own tables only: all others in this database are Airflow's."""
    return kind != "table" or name in Base.metadata.tables


def run_offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(
        url=config.get_main_option("sqlalchemy.url"),
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        literal_binds=True,
        include_object=include_object,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run on a connection handed over, else on Airflow's engine."""
    given = config.attributes.get("connection")
    if given is not None:
        _run(given)
        return
    from airflow.settings import get_engine

    with get_engine().connect() as connection:  # type: ignore[no-untyped-call]
        _run(connection)
        connection.commit()


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        compare_type=True,
        render_as_batch=connection.dialect.name == "sqlite",
        include_object=include_object,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
