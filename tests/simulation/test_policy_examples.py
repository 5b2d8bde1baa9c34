"""The tables of docs/policy.md, replayed exactly as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.scheduling import a_pool
from tests.builders.simulating import a_spec, outcomes, simulate

from emep.policy import default_policy, parse_policy
from emep.simulation.run.recording import Outcome, number

PAGE = Path(__file__).resolve().parents[2] / "docs" / "policy.md"
RESULTS = ("start", "end", "state")


@dataclass(frozen=True)
class Example:
    """One table under one policy: the column's own setting over the policy above the table."""

    name: str
    gpus: int
    policy: dict[str, Any]
    rows: tuple[dict[str, str], ...]
    expected: dict[str, str]
    result: str


def examples() -> Iterator[Example]:
    section, gpus, policy = "", 0, {}
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("#"):
            section = line.strip("# `")
        elif found := re.fullmatch(r"On (\d+) GPUs:", line):
            gpus = int(found[1])
        elif line == "```yaml":
            policy = yaml.safe_load("\n".join(iter(lambda: next(lines), "```")))
        elif line.startswith("| job_id |"):
            header = cells(line)
            next(lines)
            rows = []
            while (line := next(lines, "")).startswith("|"):
                rows.append(dict(zip(header, cells(line), strict=True)))
            yield from of_table(section, gpus, policy, header, rows)


def of_table(
    section: str, gpus: int, policy: dict[str, Any], header: list[str], rows: list[dict[str, str]]
) -> Iterator[Example]:
    for column in header:
        result, _, setting = column.partition(" with ")
        if result in RESULTS:
            inputs = tuple(
                {key: row[key] for key in header if key.partition(" with ")[0] not in RESULTS} for row in rows
            )
            expected = {row["job_id"]: row[column] for row in rows}
            merged = {**policy, **(yaml.safe_load(setting) if setting else {})}
            yield Example(f"{section}, {column}", gpus, merged, inputs, expected, result)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def told(outcome: Outcome, result: str) -> str:
    if result == "state":
        return outcome.state.value
    time = outcome.first_start if result == "start" else outcome.end
    return "" if time is None else number(time)


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_the_page_says_what_happens(example: Example) -> None:
    specs = []
    for row in example.rows:
        given = dict(row)
        job_id, submit, gpus, run = (given.pop(key) for key in ("job_id", "submit", "gpus", "run"))
        specs.append(a_spec(job_id, float(submit), int(gpus), float(run), **given))
    done = outcomes(simulate([a_pool(example.gpus)], specs, parse_policy(example.policy)))
    assert {job_id: told(one, example.result) for job_id, one in done.items()} == example.expected


def test_every_key_of_the_policy_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    from emep.policy import describe

    assert [
        key for key in describe(default_policy()) if f"`{key}" not in text and f"{key}." not in text
    ] == []
