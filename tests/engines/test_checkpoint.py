"""Checkpoints: what is complete counts, what is not does not, and the newest epoch is alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engines.artifacts import path_to_uri
from engines.checkpoint import MANIFEST, CheckpointStore, StaleEpochError, spec_digest
from engines.contract import Spec
from engines.schemas import validate

DIGEST = "d" * 64
SPEC = Spec("merge", {"recipe": {"a": 1}}, "file:///out", seed=3)


def store(folder: Path, *, digest: str = DIGEST, epoch: int = 1, job: str = "") -> CheckpointStore:
    return CheckpointStore(path_to_uri(folder / "c"), digest, epoch=epoch, job=job)


def test_what_is_saved_is_found_again(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(5.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
    saved = store(tmp_path).save(7, {"done": ["x"]}, tensors=tensors, random_state={"counter": 12})
    found = store(tmp_path).latest()
    assert found == saved
    assert found is not None
    assert (found.step, found.epoch, found.random_state, found.state()) == (
        7,
        1,
        {"counter": 12},
        {"done": ["x"]},
    )
    assert all(torch.equal(found.tensors()[name], tensor) for name, tensor in tensors.items())
    assert found.uri.endswith("/step-00000007")
    validate("checkpoint", json.loads((found.folder / MANIFEST).read_text()))


def test_the_last_two_steps_are_kept(tmp_path: Path) -> None:
    mine = store(tmp_path)
    for step in (1, 2, 3, 10):
        mine.save(step, {"step": step})
    assert sorted(p.name for p in mine.folder.glob("step-*")) == ["step-00000003", "step-00000010"]
    assert not list(mine.folder.glob(".step-*"))


def test_work_that_begins_anew_is_not_overtaken_by_its_old_steps(tmp_path: Path) -> None:
    mine = store(tmp_path)
    for step in (10, 20, 1):
        mine.save(step, {"step": step})
    found = mine.latest()
    assert found is not None
    assert found.step == 1


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    store(tmp_path).save(1, {"try": 1})
    store(tmp_path, epoch=2).save(1, {"try": 2})
    found = store(tmp_path, epoch=2).latest()
    assert found is not None
    assert (found.epoch, found.state()) == (2, {"try": 2})


def no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def torn_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-9])


def changed_file(folder: Path) -> None:
    (folder / "state.json").write_text('{"step":99}')


def lost_file(folder: Path) -> None:
    (folder / "state.json").unlink()


def wrong_step(folder: Path) -> None:
    data = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, "step": 3}))


@pytest.mark.parametrize("damage", [no_manifest, torn_manifest, changed_file, lost_file, wrong_step])
def test_a_damaged_step_does_not_exist_and_the_one_before_counts(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    mine = store(tmp_path)
    mine.save(1, {"step": 1})
    damage(mine.save(2, {"step": 2}).folder)
    found = store(tmp_path).latest()
    assert found is not None
    assert found.state() == {"step": 1}


def test_another_specs_checkpoint_is_not_mine(tmp_path: Path) -> None:
    store(tmp_path, digest="e" * 64).save(5, {})
    assert store(tmp_path).latest() is None


def test_device_and_chunked_do_not_make_another_spec_and_everything_else_does() -> None:
    same = {spec_digest(replace(SPEC, device=d, chunked=c)) for d in ("cpu", "cuda:1") for c in (False, True)}
    assert same == {spec_digest(SPEC)}
    changes = [{"seed": 4}, {"engine": "evaluate"}, {"input": {}}, {"output_uri": "file:///other"}]
    assert len({spec_digest(replace(SPEC, **change)) for change in changes} | same) == 5  # type: ignore[arg-type]


def test_an_older_epoch_never_writes_after_a_newer_one(tmp_path: Path) -> None:
    old, new = store(tmp_path, epoch=1), store(tmp_path, epoch=2)
    old.save(1, {"by": "old"})
    new.claim()
    for action in (lambda: old.save(2, {"by": "old"}), old.claim):
        with pytest.raises(StaleEpochError, match="epoch 1 is over: epoch 2 writes"):
            action()
    found = new.latest()
    assert found is not None
    assert found.state() == {"by": "old"}  # what it saved while it held the lease still counts
    new.save(2, {"by": "new"})
    assert not (old.folder / "step-00000003").exists()


def test_a_retry_is_a_newer_run_whatever_its_epoch(tmp_path: Path) -> None:
    first, retry = store(tmp_path, epoch=4, job="01a"), store(tmp_path, epoch=1, job="01b")
    first.save(7, {"by": "first"})
    found = retry.latest()
    assert found is not None
    assert found.state() == {"by": "first"}
    retry.save(8, {"by": "retry"})
    with pytest.raises(StaleEpochError, match="epoch 4 of job 01a is over: epoch 1 of job 01b writes"):
        first.save(9, {"by": "first"})


def test_every_save_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    mine = store(tmp_path)
    mine.on_save = lambda checkpoint: told.append(checkpoint.step)
    mine.save(1, {})
    mine.save(4, {})
    assert told == [1, 4]


def test_ranks_keep_their_checkpoints_apart(tmp_path: Path) -> None:
    mine = store(tmp_path)
    mine.for_rank(0).save(1, {"rank": 0})
    mine.for_rank(1).save(9, {"rank": 1})
    found = mine.for_rank(0).latest()
    assert found is not None
    assert (found.step, found.state()) == (1, {"rank": 0})
    assert mine.latest() is None


def test_cleared_work_has_no_checkpoint_but_keeps_its_fence(tmp_path: Path) -> None:
    mine = store(tmp_path, epoch=5)
    mine.save(1, {})
    mine.clear()
    assert mine.latest() is None
    with pytest.raises(StaleEpochError):
        store(tmp_path, epoch=4).save(1, {})


@pytest.mark.parametrize("call", ["os.fsync", "rename", "replace"])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_writer_killed_at_any_point_leaves_the_old_step_or_the_new_one(
    tmp_path: Path, call: str, after: int
) -> None:
    store(tmp_path).save(1, {"step": 1})
    child = os.fork()
    if child == 0:
        try:
            _kill_in(call, after)
            store(tmp_path).save(2, {"step": 2})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    found = store(tmp_path).latest()
    assert found is not None
    assert found.state() in ({"step": 1}, {"step": 2})
    store(tmp_path).save(3, {"step": 3})
    latest = store(tmp_path).latest()
    assert latest is not None
    assert latest.step == 3


def _kill_in(call: str, after: int) -> None:
    """Kill this process before the ``after``-th call of a system function."""
    owner, name = (os, "fsync") if call == "os.fsync" else (Path, call)
    original = getattr(owner, name)
    calls: list[int] = []

    def deadly(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(owner, name, deadly)
