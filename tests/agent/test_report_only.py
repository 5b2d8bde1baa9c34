"""An agent on a node whose work is pods: it describes the node and reports, and asks for no orders."""

from __future__ import annotations

from pathlib import Path

from tests.agent.conftest import AgentProcess
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
