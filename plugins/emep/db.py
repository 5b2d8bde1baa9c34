"""Airflow's external database manager for the ledger: ``airflow db migrate`` creates and upgrades its tables.

``AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS=emep.db.EmepDBManager``
"""

from __future__ import annotations

from pathlib import Path

from airflow.utils.db_manager import BaseDBManager

from emep.ledger.store.tables import Base

_LEDGER = Path(__file__).resolve().parent / "ledger"


class EmepDBManager(BaseDBManager):
    """Migrations of ``emep_*``, with a version table of their own."""

    metadata = Base.metadata
    version_table_name = "alembic_version_emep"
    migration_dir = str(_LEDGER / "migrations")
    alembic_file = str(_LEDGER / "alembic.ini")
    supports_table_dropping = True
    revision_heads_map = {"0.1.0": "0004"}  # noqa: RUF012
