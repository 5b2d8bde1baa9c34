"""Run folders: nothing is run twice, secrets are the owner's, old ones go."""

from __future__ import annotations

import json
from pathlib import Path

from tests.builders.small_api import start_order

from emep.agent.folders import RunFolder, RunFolders

DAY = 86400.0


def finished(folders: RunFolders, name: str, ended: float, exit_code: int = 0) -> RunFolder:
    folder = folders.create(start_order(name))
    assert folder is not None
    (folder.path / "done.json").write_text(json.dumps({"exit_code": exit_code, "time": ended}))
    return folder


def test_an_epoch_gets_one_folder_for_ever(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path)
    assert folders.create(start_order("a1", epoch=1)) is not None
    assert folders.create(start_order("a1", epoch=1)) is None
    assert folders.create(start_order("a1", epoch=2)) is not None


def test_an_order_survives_with_its_lease_for_its_owner_only(tmp_path: Path) -> None:
    order = start_order("a1", steps=[["print", "x"]])
    folder = RunFolders(tmp_path).create(order)
    assert folder is not None
    assert folder.order() == order
    assert json.loads(folder.spec.read_text()) == order.spec
    for path in (folder.path / "order.json", folder.spec):
        assert path.stat().st_mode & 0o077 == 0
    assert folder.path.stat().st_mode & 0o077 == 0


def test_an_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    folder = RunFolders(tmp_path).create(start_order("../../x"))
    assert folder is not None
    assert folder.path.parent == tmp_path / "runs"


def test_the_last_runs_are_kept_and_failures_for_a_day(tmp_path: Path) -> None:
    folders, now = RunFolders(tmp_path), 100 * DAY
    for number in range(5):
        finished(folders, f"good{number}", now - 3600 - number)
    finished(folders, "failed-lately", now - 0.5 * DAY, exit_code=1)
    finished(folders, "failed-before", now - 2 * DAY, exit_code=1)
    assert folders.clean(now, keep=3) == 3
    assert {folder.path.name for folder in folders.all()} == {
        "good0.1",
        "good1.1",
        "good2.1",
        "failed-lately.1",
    }


def test_what_has_just_ended_or_not_ended_is_never_removed(tmp_path: Path) -> None:
    folders, now = RunFolders(tmp_path), 100 * DAY
    finished(folders, "just-now", now - 60)
    assert folders.create(start_order("running")) is not None
    assert folders.clean(now, keep=0) == 0


def test_half_a_folder_is_no_order(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a1.1").mkdir(parents=True)
    (folder,) = RunFolders(tmp_path).all()
    assert folder.order() is None
    (folder.path / "claim.json").write_text('{"pid": 1')
    assert folder.claim() is None
