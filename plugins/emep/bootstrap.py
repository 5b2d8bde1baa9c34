"""Loads ``airflow_settings.yaml`` into plain Airflow.

Run it as ``python -m emep.bootstrap [--migrate] airflow_settings.yaml``. Astro's tool reads that file by
itself; for other deployments this creates the same pools, connections and variables. It creates pools, or
updates their slots and description (whether deferred tasks count stays as it is). It creates missing
connections and variables, and leaves existing ones alone. It also leaves pools alone that stand for GPUs of
EMEP's nodes, because the ledger writes those.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

_KEYS: dict[str, tuple[str, ...]] = {
    "connections": (
        "conn_id",
        "conn_type",
        "conn_host",
        "conn_schema",
        "conn_login",
        "conn_password",
        "conn_port",
        "conn_uri",
        "conn_extra",
    ),
    "pools": ("pool_name", "pool_slot", "pool_description"),
    "variables": ("variable_name", "variable_value"),
}
_FIRST = {"connections": "conn_id", "pools": "pool_name", "variables": "variable_name"}


class SettingsError(Exception):
    """The settings file cannot be used; the text names file, field and fix."""


@dataclass(frozen=True)
class Settings:
    """The file's contents, with Astro's own keys. Empty template entries are left out."""

    connections: list[dict[str, Any]] = field(default_factory=list)
    pools: list[dict[str, Any]] = field(default_factory=list)
    variables: list[dict[str, Any]] = field(default_factory=list)


def read_settings(path: Path) -> Settings:
    """Read the file. Raises SettingsError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: this is not YAML: {' '.join(str(error).split())}") from None
    document = document or {}
    _known(document, ("airflow",), str(path), "")
    content = document.get("airflow") or {}
    _known(content, tuple(_KEYS), str(path), "airflow")
    return Settings(**{kind: _entries(content.get(kind), kind, path) for kind in _KEYS})


def _entries(entries: Any, kind: str, path: Path) -> list[dict[str, Any]]:
    if entries is not None and not isinstance(entries, list):
        raise SettingsError(f"{path}: airflow.{kind}: a list is needed, not {type(entries).__name__}")
    found = []
    for index, entry in enumerate(entries or []):
        place = f"airflow.{kind}[{index}]"
        _known(entry, _KEYS[kind], str(path), place)
        if not entry.get(_FIRST[kind]):
            if any(value not in (None, "", {}) for value in entry.values()):
                raise SettingsError(f"{path}: {place}: {_FIRST[kind]} is missing")
            continue
        if kind == "pools" and not _is_slot_count(entry.get("pool_slot")):
            slots = entry.get("pool_slot")
            raise SettingsError(
                f"{path}: {place}.pool_slot: a whole number of slots is needed, not {slots!r}"
            )
        found.append(dict(entry))
    return found


def _is_slot_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= -1


def _known(entry: Any, keys: tuple[str, ...], file: str, place: str) -> None:
    if not isinstance(entry, Mapping):
        raise SettingsError(
            f"{file}: {place or 'the document'}: a mapping is needed, not {type(entry).__name__}"
        )
    for key in entry:
        if key not in keys:
            near = get_close_matches(str(key), keys, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(keys)}"
            raise SettingsError(f"{file}: {place + '.' if place else ''}{key}: unknown key; {hint}")


def apply_settings(settings: Settings) -> list[str]:
    """Write the settings to Airflow's database in one transaction; return a line for each change."""
    from airflow.utils.session import create_session

    done: list[str] = []
    with create_session() as session:
        for pool in settings.pools:
            done += _apply_pool(pool, session)
        for connection in settings.connections:
            done += _apply_connection(connection, session)
        for variable in settings.variables:
            done += _apply_variable(variable, session)
    return done


def _apply_pool(entry: Mapping[str, Any], session: Any) -> list[str]:
    from airflow.models.pool import Pool
    from sqlalchemy import select

    name, slots = entry["pool_name"], entry["pool_slot"]
    if slots == 0:  # As Astro's tool does.
        return []
    if _is_kept_by_emep(name, session):
        return [f"pool {name}: kept by EMEP, left as it is"]
    known = session.scalar(select(Pool).where(Pool.pool == name))
    Pool.create_or_update_pool(
        name=name,
        slots=slots,
        description=entry.get("pool_description") or "",
        include_deferred=known.include_deferred if known else False,
        team_name=known.team_name if known else None,
        session=session,
    )
    return [f"pool {name}: {slots} slots"]


def _is_kept_by_emep(name: str, session: Any) -> bool:
    """Whether the pool stands for GPUs of EMEP's nodes: its slots are the ledger's to say."""
    from sqlalchemy import inspect, select

    from emep.ledger.airflow_pools.counts import PREFIX
    from emep.ledger.store.tables import Node

    if not name.startswith(PREFIX) or not inspect(session.connection()).has_table(Node.__tablename__):
        return False
    query = select(Node.name).where(Node.pool == name.removeprefix(PREFIX)).limit(1)
    return session.scalar(query) is not None


def _apply_connection(entry: Mapping[str, Any], session: Any) -> list[str]:
    from airflow.models.connection import Connection
    from sqlalchemy import select

    conn_id = entry["conn_id"]
    if session.scalar(select(Connection.conn_id).where(Connection.conn_id == conn_id)) is not None:
        return [f"connection {conn_id}: there already, left as it is"]
    if entry.get("conn_uri"):
        connection = Connection(conn_id=conn_id, uri=entry["conn_uri"])
    else:
        extra = entry.get("conn_extra")
        connection = Connection(
            conn_id=conn_id,
            conn_type=entry.get("conn_type") or "generic",
            host=entry.get("conn_host"),
            schema=entry.get("conn_schema"),
            login=entry.get("conn_login"),
            password=entry.get("conn_password"),
            port=entry.get("conn_port"),
            extra=json.dumps(extra) if extra else None,
        )
    session.add(connection)
    return [f"connection {conn_id}: created"]


def _apply_variable(entry: Mapping[str, Any], session: Any) -> list[str]:
    from airflow.models.variable import Variable
    from sqlalchemy import select

    name = entry["variable_name"]
    if session.scalar(select(Variable.key).where(Variable.key == name)) is not None:
        return [f"variable {name}: there already, left as it is"]
    value = entry.get("variable_value")
    text = value if isinstance(value, str) else json.dumps(value)
    session.add(Variable(key=name, val=text))  # type: ignore[no-untyped-call]
    return [f"variable {name}: created"]


def migrate() -> None:
    """``airflow db migrate``, external managers included, in this process."""
    from airflow.utils.db import upgradedb

    upgradedb()


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 done, 2 for a file that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m emep.bootstrap", description="Load airflow_settings.yaml into plain Airflow."
    )
    parser.add_argument("file", type=Path, help="airflow_settings.yaml")
    parser.add_argument("--migrate", action="store_true", help="migrate Airflow's database first")
    args = parser.parse_args(arguments)
    try:
        settings = read_settings(args.file)
    except SettingsError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    if args.migrate:
        migrate()
    for line in apply_settings(settings):
        print(line)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
