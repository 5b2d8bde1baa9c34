"""The settings file for plain Airflow: read strictly, written to a real database, twice."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from tests.builders.ledger import sqlite_engine

from emep.bootstrap import SettingsError, main, read_settings
from emep.ledger.store.tables import Node

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "airflow_settings.yaml"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


def test_the_shipped_file_has_the_pool_and_the_connection_and_no_secret():
    settings = read_settings(SHIPPED)
    assert {pool["pool_name"]: pool["pool_slot"] for pool in settings.pools} == {"emep": 10_000}
    (connection,) = settings.connections
    assert connection["conn_id"] == "emep_default"
    assert not connection["conn_password"]
    assert not connection["conn_login"]
    assert not connection["conn_uri"]


def test_the_shipped_file_has_exactly_the_keys_that_astro_s_tool_reads():
    settings = read_settings(SHIPPED)
    keys = {"conn_id", "conn_type", "conn_host", "conn_schema", "conn_login", "conn_password"}
    assert set(settings.connections[0]) == keys | {"conn_port", "conn_uri", "conn_extra"}
    assert set(settings.pools[0]) == {"pool_name", "pool_slot", "pool_description"}
    assert set(settings.variables[0]) == {"variable_name", "variable_value"}


def test_the_empty_entries_of_a_template_are_left_out(tmp_path):
    path = written(
        tmp_path, "airflow:\n  connections: [{conn_id: , conn_type: }]\n  pools:\n  variables: []\n"
    )
    settings = read_settings(path)
    assert (settings.connections, settings.pools, settings.variables) == ([], [], [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("airflow: {pool: []}", ["airflow.pool", "'pools'"]),
        ("airflow: {pools: [{pool_name: a, pool_slots: 1}]}", ["airflow.pools[0].pool_slots", "'pool_slot'"]),
        ("airflow: {pools: [{pool_name: a, pool_slot: many}]}", ["pools[0].pool_slot", "many"]),
        ("airflow: {pools: [{pool_slot: 3}]}", ["pools[0]", "pool_name is missing"]),
        ("airflow: {pools: {a: 1}}", ["airflow.pools", "list"]),
        ("airflow: [1]", ["airflow", "mapping"]),
        ("airflow: [", ["not YAML"]),
        ("airflow: 2026-99-99", ["not YAML"]),
        ("airflow: " + "[" * 5000, ["not YAML"]),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, words, capsys):
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_settings(path)
    for word in [*words, "settings.yaml"]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert main([str(path)]) == 2
    assert capsys.readouterr().out == ""


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        read_settings(tmp_path / "none.yaml")


def bootstrap(home: Path, *arguments: str) -> str:
    database = f"sqlite:///{home}/airflow.db"
    env = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
    command = [sys.executable, "-m", "emep.bootstrap", *arguments]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_pools_are_brought_to_the_file_and_what_somebody_entered_is_left_alone(tmp_path):
    bootstrap(tmp_path, "--migrate", str(SHIPPED))
    database = sqlite3.connect(tmp_path / "airflow.db")
    query = "select slots, include_deferred from slot_pool where pool = 'emep'"
    assert database.execute(query).fetchone() == (10_000, 0)
    database.execute("update slot_pool set slots = 5, include_deferred = 1 where pool = 'emep'")
    database.execute("update connection set host = 'elsewhere' where conn_id = 'emep_default'")
    database.commit()
    assert "left as it is" in bootstrap(tmp_path, str(SHIPPED))
    assert database.execute(query).fetchone() == (10_000, 1)
    assert database.execute("select host from connection").fetchall() == [("elsewhere",)]
    assert database.execute("select count(*) from emep_job").fetchone() == (0,), "EMEP's tables are there too"
    database.close()


def test_a_pool_that_stands_for_gpus_of_emep_s_nodes_is_emep_s_to_write(tmp_path):
    pools = "[{pool_name: gpu_default, pool_slot: 8}, {pool_name: gpu_mine, pool_slot: 3}]"
    path = written(tmp_path, f"airflow: {{pools: {pools}}}")
    bootstrap(tmp_path, "--migrate", str(path))
    engine = sqlite_engine(str(tmp_path / "airflow.db"))
    with engine.begin() as connection:
        node = {"name": "n0", "pool": "default", "rack": "", "block": "", "labels": {}, "cpu": 1, "memory": 1}
        times = {"registered_at": 0, "last_report_at": 0, "last_check_at": 0}
        connection.execute(insert(Node).values(**node, **times, network_bandwidth_gbps=0))
        connection.execute(text("update slot_pool set slots = 2 where pool like 'gpu_%'"))
    said = bootstrap(tmp_path, str(path))
    assert "pool gpu_default: kept by EMEP, left as it is" in said
    with engine.connect() as connection:
        rows = connection.execute(
            text("select pool, slots from slot_pool where pool like 'gpu_%' order by 1")
        )
        assert [tuple(row) for row in rows] == [("gpu_default", 2), ("gpu_mine", 3)]
    engine.dispose()
