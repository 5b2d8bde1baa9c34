"""An agent on a node whose work is pods: it describes the node and reports, and asks for no orders."""

from __future__ import annotations

from collections.abc import Callable

from tests.agent.conftest import AgentProcess
from tests.builders.small_api import SmallApi


def test_it_registers_for_pods_and_reports_and_never_polls(
    api: SmallApi, start_agent: Callable[..., AgentProcess]
) -> None:
    agent = start_agent("--report-only", "--simulate", "2", "--label", "zone=a")
    api.until(lambda: api.health.get("n1"))
    assert api.nodes["n1"].labels == {"zone": "a", "emep/runtime": "kubernetes"}
    assert agent.terminate() == 0
    # Not even a farewell: the pods of its node go on while it is exchanged.
    assert api.polls == []
