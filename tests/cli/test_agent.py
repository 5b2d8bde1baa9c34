"""emep agent: a bad start is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.builders.emep_server import EmepServer
from tests.cli.conftest import Emep

QUICK = ["--simulate", "1", "--connect-timeout", "0s"]


def test_a_wrong_secret_is_refused(server: EmepServer, emep: Emep, tmp_path: Path) -> None:
    environment = {"EMEP_API_URL": server.url, "EMEP_AGENT_TOKEN": "guess"}
    done = emep("agent", *QUICK, "--state-dir", str(tmp_path / "s"), environment=environment)
    assert done.returncode == 1
    assert (
        f"emep: the API at {server.url}/emep/api/v1 refuses this agent's secret (EMEP_AGENT_TOKEN)"
        in done.stderr
    )
    assert "guess" not in done.stderr


def test_an_api_that_is_not_there_is_named(emep: Emep, tmp_path: Path) -> None:
    environment = {"EMEP_API_URL": "http://127.0.0.1:9", "EMEP_AGENT_TOKEN": "s"}
    done = emep("agent", *QUICK, "--state-dir", str(tmp_path / "s"), environment=environment)
    assert done.returncode == 1
    assert "emep: no connection to http://127.0.0.1:9/emep/api/v1 (connection refused)" in done.stderr


def test_no_secret_is_wrong_use(emep: Emep) -> None:
    done = emep("agent", *QUICK)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("emep: EMEP_AGENT_TOKEN is not set")


def test_a_state_folder_that_cannot_be_written_is_named(emep: Emep, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = emep(
        "agent", *QUICK, "--state-dir", str(tmp_path / "file" / "s"), environment={"EMEP_AGENT_TOKEN": "s"}
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"emep: --state-dir: {tmp_path / 'file' / 's'} cannot be written")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--name", "no spaces", "--name: 'no spaces' is no node name"),
        ("--simulate", "-1", "--simulate: -1 is too small"),
        ("--gpu-memory", "much", "--gpu-memory: memory is bytes or text"),
        ("--label", "zone", "--label: 'zone' is not KEY=VALUE"),
        ("--stop-grace", "soon", "--stop-grace: a duration is seconds"),
    ],
)
def test_a_wrong_option_is_named(emep: Emep, option: str, value: str, sentence: str) -> None:
    done = emep("agent", f"{option}={value}", environment={"EMEP_AGENT_TOKEN": "s"})
    assert done.returncode == 2
    assert f"emep: {sentence}" in done.stderr
