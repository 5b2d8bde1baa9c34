"""Command lines as real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.builders.emep_server import EmepServer

POLICY = "health: {report_every: 1h}\nlease: {expiry: 10m}"
"""Commands take seconds on a loaded machine, and the tests' nodes have no agents that report meanwhile."""
EMEP = str(Path(sys.executable).with_name("emep"))
Emep = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def server() -> Iterator[EmepServer]:
    with tempfile.TemporaryDirectory(prefix="d-cli-", dir="/tmp", ignore_cleanup_errors=True) as name:
        server = EmepServer(Path(name), policy=POLICY).start()
        yield server
        server.stop()


@pytest.fixture
def emep(tmp_path: Path) -> Emep:
    """Run ``emep ARGUMENTS`` with an empty home; ``environment=`` adds variables."""

    def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EMEP_")}
        return subprocess.run(
            [EMEP, *arguments],
            env={**clean, "HOME": str(tmp_path), "COLUMNS": "200", **(environment or {})},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run
