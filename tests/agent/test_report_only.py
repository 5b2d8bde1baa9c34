"""An agent on a node whose work is pods: it describes the node and reports, and asks for no orders."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.agent.conftest import EMEP, AgentProcess
from tests.builders.small_api import SmallApi


def test_it_registers_for_pods_and_reports_and_never_polls(api: SmallApi, folder: Path) -> None:
    options = ("--report-only", "--simulate", "2", "--label", "zone=a")
    agent = AgentProcess(api, folder, options).start()
    try:
        api.until(lambda: api.health.get("n1"))
        assert api.nodes["n1"].labels == {"zone": "a", "emep/runtime": "kubernetes"}
    finally:
        status = agent.terminate()
    assert status == 0
    # Not even a farewell: the pods of its node go on while it is exchanged.
    assert api.polls == []


SIGNAL_DURING_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "emep.agent.main":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
"""


def test_a_signal_that_comes_while_the_agent_is_imported_ends_it(api: SmallApi, folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(SIGNAL_DURING_IMPORT, encoding="utf-8")
    done = subprocess.run(
        [EMEP, "agent", "--simulate", "1", "--api-url", api.url, "--state-dir", str(folder / "state")],
        env={**os.environ, "PYTHONPATH": str(folder), "EMEP_AGENT_TOKEN": "s"},
        timeout=300,
        check=False,
    )
    # By itself, and not by the signal: the first process of a container is not ended by one.
    assert done.returncode == 143
    assert api.nodes == {}
