"""Settings of DAGs and their runs, from ``[emep]`` in Airflow's configuration and from Variables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from airflow.configuration import AIRFLOW_HOME
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from emep.operators.retries import retry_numbers

POOL = "emep"
"""Airflow pool of EMEP's tasks: 10,000 slots, deferred tasks not counted, so that Airflow never decides
first."""
DATA_VARIABLE = "emep_data"
"""Variable with the folder that relative paths of models, recipes and tasks start from."""
DEFAULT_GROUPS = 16
LONGEST = timedelta(days=7)
"""The time that a run, and so a task of it, may take, waiting included."""


def generation_groups() -> int:
    """Generation groups in each evolving DAG: ``[emep] generation_groups``, 1 to 64, 16 by default."""
    return max(1, min(64, int(conf.getint("emep", "generation_groups", fallback=DEFAULT_GROUPS))))


def artifact_uri() -> str:
    """Root of the ArtifactStore as a URI, without a slash at its end: ``[emep] artifact_uri``."""
    configured = str(conf.get("emep", "artifact_uri", fallback="") or "")
    if configured:
        return configured.rstrip("/")
    return (Path(AIRFLOW_HOME).absolute() / "emep" / "artifacts").as_uri()


def data_root() -> str | None:
    """The Variable ``emep_data`` as an absolute path or URI; None where it is not set."""
    from airflow.sdk import Variable

    root = Variable.get(DATA_VARIABLE, default=None)
    return str(root).rstrip("/") if root else None


def absolute(path: str, root: str | None) -> str:
    """``path`` itself if it is absolute or a URI, else below ``root``.

    ``file://`` URIs of local folders become paths. Raises AirflowFailException for what is neither a path nor
    a URI.
    """
    if "://" in path:
        try:
            parsed = urlparse(path)
        except ValueError as error:
            raise AirflowFailException(f"{path[:200]!r} is neither a path nor a URI: {error}.") from None
        return unquote(parsed.path) if parsed.scheme == "file" else path
    if root is None or path.startswith("/"):
        return path
    return absolute(f"{root}/{path}", None)


def default_arguments() -> dict[str, Any]:
    """``default_args`` of EMEP's DAGs: the policy file's retries, and a pool that never delays a request.

    Exit 65 and a rejected request are never retried (the operator raises ``AirflowFailException``).
    ``execution_timeout`` counts from the task's start, waiting included (EMEP enforces it, as Airflow does
    not while a task is deferred), so it is long; the limit of one run is the job's ``max_duration``, that of
    waiting its queue's ``pending_ttl``.
    """
    retries = retry_numbers()
    return {
        "owner": "emep",
        "retries": retries.max,
        "retry_delay": timedelta(seconds=retries.backoff),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(seconds=retries.max_backoff),
        "pool": POOL,
        "weight_rule": "absolute",
        "execution_timeout": LONGEST,
    }


def dag_arguments() -> dict[str, Any]:
    """Arguments that all DAGs of EMEP share.

    Many runs and tasks may be active at once, because Airflow must not delay a request: EMEP decides the
    order.
    """
    return {
        "schedule": None,
        "start_date": datetime(2025, 1, 1, tzinfo=UTC),
        "catchup": False,
        "default_args": default_arguments(),
        "max_active_runs": 1000,
        "max_active_tasks": 64,
        "dagrun_timeout": LONGEST,
    }
