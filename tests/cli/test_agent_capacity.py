"""Which of the two an agent offers, by what it does."""

from __future__ import annotations

import argparse

import pytest

from emep.agent import capacity
from emep.cli.commands.agent import add_arguments, read_settings


@pytest.mark.parametrize(("options", "offered"), [(["--report-only"], "machine"), ([], "own")])
def test_an_agent_offers_the_machine_where_it_only_reports_and_its_own_limit_where_it_runs_work(
    monkeypatch: pytest.MonkeyPatch, options: list[str], offered: str
) -> None:
    values = {"machine": (128.0, 2**40), "own": (0.5, 2**28)}
    for name, (cpus, memory) in values.items():
        monkeypatch.setattr(capacity, f"{name}_cpus", lambda cpus=cpus: cpus)
        monkeypatch.setattr(capacity, f"{name}_memory", lambda memory=memory: memory)
    monkeypatch.setenv("EMEP_AGENT_TOKEN", "secret")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = read_settings(parser.parse_args(["--name", "n1", *options]))
    assert (settings.cpu, settings.memory) == values[offered]
