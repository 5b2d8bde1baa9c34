"""The plugin as Airflow loads it: in milliseconds, in every process, once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emep.settings import Settings, derive_key

ROOT = Path(__file__).resolve().parents[1]


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_the_plugin_module_imports_nothing_heavy() -> None:
    code = """
import airflow.plugins_manager, sys
before = set(sys.modules)
import emep.plugin
new = {name.split(".")[0] for name in set(sys.modules) - before}
heavy = {"fastapi", "sqlalchemy", "httpx", "kubernetes", "torch", "numpy", "pydantic"} & new
ours = sorted(name for name in sys.modules if name.startswith("emep"))
print(sorted(heavy), "airflow.api_fastapi" in set(sys.modules) - before, ours)
"""
    assert run(code) == "[] False ['emep', 'emep.airflow', 'emep.airflow.cluster_policy', 'emep.plugin']"


def test_the_loader_finds_the_plugin_and_shadows_no_module() -> None:
    code = """
import sys
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print([p.name for p in plugins if p.name == "emep"], dict(errors))
for name in ("settings", "exceptions", "db", "client", "units", "plugin", "queue", "model", "tables"):
    module = sys.modules.get(name)
    assert "plugins/emep" not in str(getattr(module, "__file__", "")), name
"""
    assert run(code, AIRFLOW__CORE__PLUGINS_FOLDER=str(ROOT / "plugins")) == "['emep'] {}"


def test_the_app_is_made_once() -> None:
    from emep.plugin import EmepPlugin

    (first,), (second,) = EmepPlugin.fastapi_apps, EmepPlugin().fastapi_apps
    assert first["app"] is second["app"]
    assert (first["url_prefix"], first["name"]) == ("/emep", "EMEP")


def test_settings_come_from_airflows_configuration(tmp_path: Path) -> None:
    code = """
from emep.settings import get_settings
s = get_settings()
print(s.agent_token, s.service_user, s.policy_file, s.tick_seconds, s.secret_key.decode(), s.artifact_uri)
"""
    told = run(
        code,
        AIRFLOW__EMEP__AGENT_TOKEN="enrol",
        AIRFLOW__EMEP__SERVICE_USER="robot",
        AIRFLOW__EMEP__POLICY_FILE="/p.yaml",
        AIRFLOW__EMEP__TICK_SECONDS="0.5",
        AIRFLOW__EMEP__SECRET_KEY="k" * 16,
        AIRFLOW__EMEP__ARTIFACT_URI="file:///a",
    )
    assert told == f"enrol robot /p.yaml 0.5 {'k' * 16} file:///a"


def test_by_default_the_key_is_derived_from_airflows_secret_and_does_not_tell_it() -> None:
    secret = os.environ["AIRFLOW__API_AUTH__JWT_SECRET"]
    told = run("from emep.settings import get_settings; print(get_settings().secret_key.hex())")
    assert told == derive_key(secret).hex()
    assert secret.encode().hex() not in told


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ValueError, match=r"\[emep\] secret_key"):
        Settings(secret_key=b"short")
    with pytest.raises(ValueError, match=r"\[emep\] tick_seconds"):
        Settings(secret_key=b"k" * 16, tick_seconds=0)
    code = "from emep.settings import get_settings\ntry: get_settings()\nexcept ValueError as e: print(e)"
    assert (
        run(code, AIRFLOW__EMEP__TICK_SECONDS="often")
        == "[emep] tick_seconds: a number is needed, not 'often'"
    )


def test_a_task_links_to_its_job_and_its_jobs_log() -> None:
    from emep.operators.fair_share import FairShareGpuOperator
    from emep.plugin import EmepPlugin

    registered = {type(link) for link in EmepPlugin.operator_extra_links}
    operator = FairShareGpuOperator(task_id="t", engine="merge")
    assert {type(link) for link in operator.operator_extra_links} == registered
    assert [link.get_link(operator, ti_key=None) for link in operator.operator_extra_links] == ["", ""]
    operator.job_id = "job1"
    assert [link.get_link(operator, ti_key=None) for link in operator.operator_extra_links] == [
        "/emep/jobs/job1",
        "/emep/api/v1/jobs/job1/logs",
    ]


def test_links_stand_below_the_path_that_airflow_is_served_at(monkeypatch) -> None:
    from emep.operators.fair_share import FairShareGpuOperator
    from emep.operators.links import JobLink

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/airflow/")
    operator = FairShareGpuOperator(task_id="t", engine="merge")
    operator.job_id = "job1"
    assert JobLink().get_link(operator, ti_key=None) == "/airflow/emep/jobs/job1"
