"""``emep policy``: the same verdict as the server's, and what a file would change."""

from __future__ import annotations

import json
from pathlib import Path

from tests.builders.emep_server import EmepServer
from tests.cli.conftest import Emep

from emep.cli.commands.policy import changes
from emep.client import EmepClient, operator_calls


def test_a_valid_file_is_valid(emep: Emep, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("half_life: 1d\n")
    done = emep("policy", "check", str(tmp_path / "p.yaml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "p.yaml: valid; queues merge, eval" in done.stdout


def test_a_wrong_file_is_one_sentence_with_line_and_key(emep: Emep, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("half_life: 1d\nqueues:\n  merge: {wieght: 2}\n")
    done = emep("policy", "check", str(tmp_path / "p.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    expected = "p.yaml:3: queues.merge.wieght: unknown key 'wieght': did you mean 'weight'?\n"
    assert done.stderr.endswith(expected)


def test_a_file_that_is_not_there_is_wrong_use(emep: Emep, tmp_path: Path) -> None:
    done = emep("policy", "check", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "cannot be read" in done.stderr


def test_a_diff_lists_what_would_change(server: EmepServer, emep: Emep, tmp_path: Path) -> None:
    access = {"EMEP_API_URL": server.url, "EMEP_USERNAME": "viewer", "EMEP_PASSWORD": "viewer-password"}
    path = tmp_path / "p.yaml"
    with EmepClient.from_environment({**access, "HOME": str(tmp_path)}) as client:
        in_force = client.raw(operator_calls.policy())
    path.write_text(json.dumps(in_force))  # JSON is YAML
    same = emep("policy", "diff", str(path), environment=access)
    assert (same.returncode, same.stdout) == (0, f"{path}: the same as the policy in force\n")

    in_force["half_life"], in_force["queues"]["merge"]["max_gpus"] = 0, 4
    path.write_text(json.dumps(in_force))
    shown = emep("policy", "diff", str(path), environment=access)
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["KEY", "IN", "FORCE", "FILE"],
        ["half_life", "604800.0", "0.0"],
        ["queues.merge.max_gpus", "-", "4"],
    ]
    operator = {**access, "EMEP_USERNAME": "admin", "EMEP_PASSWORD": "admin-password"}
    assert emep("share", "set", "queue:merge", "7", environment=operator).returncode == 0
    try:
        weighed = emep("policy", "diff", str(path), environment=access).stdout
        assert "weight" not in weighed, "a weight that an operator has set stays in force"
    finally:
        assert emep("share", "unset", "queue:merge", environment=operator).returncode == 0
    listed = json.loads(emep("policy", "diff", str(path), "--json", environment=access).stdout)
    assert listed[0] == {"key": "half_life", "in_force": 604800.0, "file": 0.0}


def test_mappings_are_compared_key_by_key() -> None:
    now = {"a": {"b": 1, "c": [1, 2]}, "d": 3}
    assert changes(now, {"a": {"b": 1, "c": [2]}, "e": 4}) == [
        ("a.c", [1, 2], [2]),
        ("d", 3, None),
        ("e", None, 4),
    ]
