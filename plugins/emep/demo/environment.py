"""Airflow's configuration for the demo, as environment variables: one machine and loopback only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from emep.demo.home import DemoHome, Secrets

SERVICE_USER = "emep"
AUTH_MANAGER = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"


def environment(
    home: DemoHome, project: Path, secrets: Secrets, port: int, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of every process of the demo.

    Settings of another Airflow (``AIRFLOW_*``, ``EMEP_*``) in the caller's environment are left out, so that
    the demo touches nothing but its own folder.
    """
    inherited = os.environ if base is None else base
    clean = {key: value for key, value in inherited.items() if not key.startswith(("AIRFLOW", "EMEP_"))}
    # A dozen processes import the same modules: the first one's bytecode saves the others half their start.
    clean.pop("PYTHONDONTWRITEBYTECODE", None)
    url = f"http://127.0.0.1:{port}"
    connection = {
        "conn_type": "http",
        "host": "127.0.0.1",
        "port": port,
        "schema": "http",
        "login": SERVICE_USER,
        "password": secrets.service_password,
    }
    airflow = {
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__DAGS_FOLDER": str(project / "dags"),
        "CORE__PLUGINS_FOLDER": str(project / "plugins"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # Few worker processes: from the grant on nothing needs one.
        "CORE__PARALLELISM": "6",
        "CORE__MAX_ACTIVE_TASKS_PER_DAG": "64",
        "CORE__MAX_ACTIVE_RUNS_PER_DAG": "1000",
        "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "5",
        "CORE__AUTH_MANAGER": AUTH_MANAGER,
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,{SERVICE_USER}:op",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home.passwords),
        "CORE__FERNET_KEY": secrets.fernet_key,
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.airflow / 'airflow.db'}",
        "DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "emep.demo.database.CONNECT_ARGUMENTS",
        "DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": "emep.demo.database.CONNECT_ARGUMENTS",
        "DATABASE__EXTERNAL_DB_MANAGERS": "emep.db.EmepDBManager",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__WORKERS": "1",
        "API__BASE_URL": url,
        "API__SECRET_KEY": secrets.jwt_secret,
        "API_AUTH__JWT_SECRET": secrets.jwt_secret,
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "60",
        # On a machine that is busy with other things the API server may be slow to answer a worker.
        "WORKERS__EXECUTION_API_TIMEOUT": "30",
        # An API server that is away for two minutes costs a task no try (docs/operate.md).
        "WORKERS__EXECUTION_API_RETRIES": "60",
        "WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "5",
        "TRIGGERER__CAPACITY": "10000",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
        "EMEP__AGENT_TOKEN": secrets.agent_token,
        "EMEP__SERVICE_USER": SERVICE_USER,
        "EMEP__POLICY_FILE": str(home.policy),
        "EMEP__ARTIFACT_URI": home.artifacts.as_uri(),
        "EMEP__CHECKPOINT_URI": (home.root / "checkpoints").as_uri(),
        "EMEP__TRACKER_URI": (home.root / "tracking").as_uri(),
    }
    return {
        **clean,
        **{f"AIRFLOW__{key}": value for key, value in airflow.items()},
        "AIRFLOW_HOME": str(home.airflow),
        "AIRFLOW_CONN_EMEP_DEFAULT": json.dumps(connection),
        "AIRFLOW_VAR_EMEP_DATA": str(home.models),
        # The agents and the engines on two cores: one thread each, or they fight for them.
        "OMP_NUM_THREADS": clean.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "EMEP_API_URL": url,
        "EMEP_AGENT_TOKEN": secrets.agent_token,
    }
