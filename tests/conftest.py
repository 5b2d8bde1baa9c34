"""Each process of the test run has an Airflow home and a database of its own.

So no test reads or writes the developer's, and the workers of `pytest -n` do not meet.

This must happen before anything imports Airflow, which reads its configuration at import.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
_HOME = tempfile.mkdtemp(prefix="emep-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

_PASSWORDS = Path(_HOME) / "passwords.json"
_PASSWORDS.write_text('{"admin": "admin", "op": "op", "emep": "emep", "alice": "alice", "viewer": "viewer"}')

os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(ROOT / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(ROOT / "plugins"),
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="admin:admin,op:op,emep:user,alice:user,viewer:viewer",
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(_PASSWORDS),
    AIRFLOW__API_AUTH__JWT_SECRET="test-secret-" * 8,
    AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS="emep.db.EmepDBManager",
)
os.environ.pop("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", None)
# A shell lets what it runs in the background ignore Ctrl-C; what tests start there must not inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests start hundreds of processes: byte code halves the time in which they start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says something of the machine, and nothing of what is tested.
settings.register_profile("emep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("emep")

from tests.builders.shared_folder import shared_folder  # noqa: E402
from tests.builders.worker_database import take_own_database  # noqa: E402

# Before there are workers, which inherit it.
shared_folder()
# Before any test module reads the variable.
take_own_database()
if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: one thread each, or they fight for them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# One cluster for all tests of a process, whichever folders they are in.
from tests.cluster.fixtures import cluster, local_cluster  # noqa: E402, F401
from tests.parallel import pytest_collection_modifyitems, pytest_xdist_make_scheduler  # noqa: E402, F401
