"""What every command has in common: help, wrong use, how little is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cli.conftest import Emep

from emep.cli import COMMANDS


def test_without_a_command_the_list_is_shown_and_the_use_is_wrong(emep: Emep) -> None:
    done = emep()
    assert done.returncode == 2
    assert done.stdout == ""
    for command in COMMANDS:
        assert f"  {command}" in done.stderr


def test_help_and_version_succeed(emep: Emep) -> None:
    assert emep("--help").returncode == 0
    assert emep("--version").stdout.startswith("emep 0.")


def test_a_mistyped_command_is_answered_with_the_nearest(emep: Emep) -> None:
    done = emep("quue")
    assert (done.returncode, done.stderr) == (
        2,
        "emep: there is no command 'quue': did you mean `emep queue`?\n",
    )


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"simulate"}))
def test_every_command_has_a_help_text(emep: Emep, command: str) -> None:
    done = emep(command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: emep {command}")


def test_an_unknown_option_is_wrong_use(emep: Emep) -> None:
    done = emep("queue", "--colour")
    assert done.returncode == 2
    assert "--colour" in done.stderr


def imported(code: str) -> set[str]:
    """Modules that are loaded after ``code`` has run in a fresh interpreter."""
    program = f"{code}\nimport sys; print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


HEAVY = {"airflow", "torch", "sqlalchemy", "fastapi", "numpy", "trio", "click"}


def test_the_help_of_a_read_command_imports_nothing_heavy() -> None:
    code = "import emep.cli\ntry: emep.cli.main(['queue', '--help'])\nexcept SystemExit: pass"
    assert not imported(code) & (HEAVY | {"httpx", "pydantic", "rich", "yaml"})


def test_a_read_command_imports_no_airflow_and_no_models() -> None:
    code = (
        "import os, emep.cli\n"
        "os.environ.update(EMEP_API_URL='http://127.0.0.1:1', EMEP_TOKEN='t', HOME='/nowhere')\n"
        "assert emep.cli.main(['queue']) == 1"
    )
    loaded = imported(code)
    assert "httpx" in loaded
    assert not loaded & (HEAVY | {"pydantic", "emep.wire.jobs"})


def test_what_was_hidden_from_httpx_can_be_imported_afterwards() -> None:
    code = "from emep.cli.quick import import_httpx\nimport_httpx()\nimport click\nimport trio"
    assert {"click", "trio", "httpx"} <= imported(code)
