"""The policy file changes, breaks, or is half written while EMEP runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from emep.ledger.policies import source as policy_source
from emep.ledger.policies.source import PolicySource
from emep.policy import PolicyError, parse_policy

GOOD = "half_life: 3d\n"
DAY = 86400.0


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_source, "LOOK_SECONDS", 0.0)


def write(path: Path, content: str | bytes, seconds_ago: float) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    moment = time.time() - seconds_ago
    os.utime(path, (moment, moment))


def test_a_changed_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, GOOD, 100)
    source = PolicySource(path)
    write(path, "half_life: 5d\n", 10)

    assert source().half_life == 5 * DAY


def test_a_file_that_somebody_may_be_writing_waits_until_it_has_been_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_source, "SETTLE_SECONDS", 60.0)
    path = tmp_path / "policy.yaml"
    write(path, GOOD, 100)
    source = PolicySource(path)
    write(path, "", 0)  # an editor has emptied it, and writes the rest in a moment
    assert source().half_life == 3 * DAY

    write(path, "half_life: 5d\n", 90)

    assert source().half_life == 5 * DAY


@pytest.mark.parametrize(
    "content",
    [
        "half_life: [", "half_life: often\n", "- 1\n", "queues: {merge: {weight: -1}}\n", "a: &a [*a]\n",
        b"\xff\xfe\x00", "[" * 3000, "half_life: 2026-99-99\n", "\x00",
        "queues: {eval: {classes: [nobody]}}\n",
    ],
)  # fmt: skip
def test_a_broken_file_leaves_the_former_policy_in_force(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "policy.yaml"
    write(path, GOOD, 100)
    source = PolicySource(path)
    write(path, content, 10)
    assert source().half_life == 3 * DAY

    write(path, "half_life: 5d\n", 5)

    assert source().half_life == 5 * DAY


def test_a_file_that_is_gone_leaves_the_former_policy_in_force(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, GOOD, 100)
    source = PolicySource(path)
    path.unlink()

    assert source().half_life == 3 * DAY


def test_a_server_does_not_start_on_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "half_life: often\n", 10)

    with pytest.raises(PolicyError):
        PolicySource(path)


def test_a_start_with_a_broken_file_goes_on_with_the_policy_that_was_in_force(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "half_life: 3x\n", 100)
    former = parse_policy({"half_life": "9d"})

    source = PolicySource(path, lambda: former)
    assert source() is former
    assert source.problem is not None
    assert source.problem.message.startswith(f"{path}:1: half_life: ")
    assert abs(source.problem.since - time.time()) < 60

    write(path, "half_life: 5d\n", 10)
    assert source().half_life == 5 * DAY
    assert source.problem is None


def test_a_first_start_with_a_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "half_life: 3x\n", 100)
    with pytest.raises(PolicyError, match="half_life"):
        PolicySource(path, lambda: None)


def test_a_file_that_breaks_while_emep_runs_is_told_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, GOOD, 100)
    source = PolicySource(path)
    assert source.problem is None
    write(path, "quues: {}\n", 50)
    assert source().half_life == 3 * DAY
    assert source.problem is not None
    assert "did you mean 'queues'" in source.problem.message
    write(path, GOOD, 10)
    source()
    assert source.problem is None
