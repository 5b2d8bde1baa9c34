"""What the migrations build is what the code believes to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect

from emep.db import EmepDBManager
from emep.ledger.store.tables import Base


def alembic_config(connection: object) -> Config:
    config = Config(EmepDBManager.alembic_file)
    config.set_main_option("script_location", EmepDBManager.migration_dir)
    config.attributes["connection"] = connection
    return config


def test_migrated_schema_equals_the_tables_in_code(engine: Engine) -> None:
    Base.metadata.drop_all(engine)
    with engine.connect() as connection:
        command.upgrade(alembic_config(connection), "heads")
        connection.commit()
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": EmepDBManager.version_table_name,
                "compare_type": True,
                "include_object": lambda _o, name, kind, *_: kind != "table" or name in Base.metadata.tables,
            },
        )
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == list(EmepDBManager.revision_heads_map.values())[-1]


def test_downgrading_leaves_nothing_behind(engine: Engine) -> None:
    Base.metadata.drop_all(engine)
    with engine.connect() as connection:
        config = alembic_config(connection)
        command.upgrade(config, "heads")
        command.downgrade(config, "base")
        connection.commit()
    left = [name for name in inspect(engine).get_table_names() if name.startswith("emep_")]
    assert left == []


def test_names_collide_with_none_of_airflows() -> None:
    from airflow.models.base import metadata as airflow_metadata

    assert all(name.startswith("emep_") for name in Base.metadata.tables)
    assert not set(Base.metadata.tables) & set(airflow_metadata.tables)


def test_airflow_db_migrate_creates_the_tables(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
    }
    command_line = [str(Path(sys.executable).with_name("airflow")), "db", "migrate"]
    run = subprocess.run(command_line, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    names = set(inspect(create_engine(f"sqlite:///{tmp_path}/airflow.db")).get_table_names())
    assert set(Base.metadata.tables) <= names
    assert EmepDBManager.version_table_name in names
