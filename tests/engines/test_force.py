"""What ``--force`` replaces, and what no command ever does; what is left where a disk is full."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.builders.checkpoints import save_family

from engines.artifacts import digest_folder
from engines.cli import main
from engines.contract import BadInputError
from engines.merge.run.output import OutputFolder


@pytest.fixture
def family(tmp_path: Path) -> dict[str, Path]:
    return {name: Path(path) for name, path in save_family(tmp_path / "family").items()}


@pytest.fixture
def recipe(family: dict[str, Path], tmp_path: Path) -> Path:
    models = [{"model": str(family[name]), "parameters": {"weight": 0.5}} for name in ("one", "two")]
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"merge_method": "linear", "models": models, "dtype": "float32"}))
    return path


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder by its digest; links by where they lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes().hex()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def refused(recipe: Path, out: Path, words: str, capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """The forced merge ends with one sentence before any tensor is read, and changes no file."""
    before = contents(root)
    assert main(["merge", str(recipe), str(out), "--force"]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert "tensors" not in shown.out
    assert contents(root) == before


def test_an_input_is_never_replaced(
    recipe: Path, family: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(recipe, family["one"], "is an input", capsys, tmp_path)


def test_a_folder_that_holds_an_input_is_never_replaced(
    recipe: Path, family: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(recipe, family["one"].parent, "holds an input", capsys, tmp_path)


def test_an_input_by_another_name_is_an_input(
    recipe: Path, family: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tmp_path / "real"
    family["one"].rename(real)
    family["one"].symlink_to(real)
    refused(recipe, real, "is an input", capsys, tmp_path)


def test_the_folder_that_holds_an_inputs_files_is_an_input(
    recipe: Path, family: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    weights = sorted(family["one"].glob("*.safetensors"))[0]
    weights.rename(blobs / "weights")
    weights.symlink_to(blobs / "weights")
    refused(recipe, blobs, "holds an input", capsys, tmp_path)


def test_the_working_folder_is_never_replaced(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine" / "below"
    mine.mkdir(parents=True)
    (mine.parent / "mine.txt").write_text("mine")
    monkeypatch.chdir(mine)
    refused(recipe, Path("."), "is the working folder", capsys, tmp_path)
    refused(recipe, mine.parent, "is the working folder, or holds it", capsys, tmp_path)


@pytest.mark.parametrize("target", ["nowhere", "other"])
def test_a_link_is_never_followed_nor_replaced(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    (tmp_path / "out").symlink_to(tmp_path / target)
    refused(recipe, tmp_path / "out", "is a link", capsys, tmp_path)


def test_a_file_is_never_replaced(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    refused(recipe, tmp_path / "out", "is a file", capsys, tmp_path)


def test_a_folder_that_no_merge_wrote_is_never_replaced(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    refused(recipe, tmp_path / "out", "was not written by a merge", capsys, tmp_path)


def test_a_merges_folder_with_a_file_of_its_users_is_never_replaced(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(recipe), str(tmp_path / "out")]) == 0
    capsys.readouterr()
    (tmp_path / "out" / "notes.md").write_text("mine")
    refused(recipe, tmp_path / "out", "holds notes.md, which the merge did not write", capsys, tmp_path)


def test_a_file_that_is_not_as_the_merge_wrote_it_is_never_replaced(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edited file, a copied manifest that names what the user has put there, a link under such a name."""
    out = tmp_path / "out"
    assert main(["merge", str(recipe), str(out)]) == 0
    copied = tmp_path / "copied"
    copied.mkdir()
    manifest = json.loads((out / "emep_merge.json").read_text())
    (copied / "emep_merge.json").write_text(json.dumps(manifest | {"outputs": {"mine.txt": "0" * 64}}))
    (copied / "mine.txt").write_text("mine")
    capsys.readouterr()
    refused(recipe, copied, "holds mine.txt, which is not as the merge wrote it any more", capsys, tmp_path)
    kept = (out / "config.json").read_bytes()
    (out / "config.json").write_text('{"mine": 1}')
    refused(recipe, out, "holds config.json, which is not as the merge wrote it any more", capsys, tmp_path)
    (out / "config.json").unlink()
    (tmp_path / "elsewhere.json").write_bytes(kept)
    (out / "config.json").symlink_to(tmp_path / "elsewhere.json")
    refused(recipe, out, "holds config.json, which is not as the merge wrote it any more", capsys, tmp_path)


def test_a_mount_point_is_refused_before_the_merge(
    recipe: Path, small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(recipe, small_disk, "is a mount point", capsys, tmp_path)


FOREIGN = ("mine.txt", "step-00000001/mine.txt", "fence/mine.txt", "rank-0/mine.txt", "notes/step-00000001/a")


def foreign_checkpoints(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_that_has_the_name_of_a_merges_checkpoints_is_left_alone(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    foreign_checkpoints(tmp_path / ".out.checkpoints", name)
    words = f"holds {name.partition('/')[0]}, which is no checkpoint"
    refused(recipe, tmp_path / "out", words, capsys, tmp_path)


def test_a_link_that_has_the_name_of_a_merges_checkpoints_is_not_followed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious" / "step-00000001"
    precious.mkdir(parents=True)
    (precious / "manifest.json").write_text("mine")
    (tmp_path / ".out.checkpoints").symlink_to(precious.parent)
    refused(recipe, tmp_path / "out", "is a link", capsys, tmp_path)


def test_a_merges_hidden_folder_is_its_own_users_and_no_link(tmp_path: Path) -> None:
    """Else who may write beside the output chooses what is truncated and removed."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "mine.txt").write_text("mine")
    output = OutputFolder(tmp_path / "out", "d" * 64)
    output.partial.symlink_to(precious)
    with pytest.raises(BadInputError, match="is a link"):
        output.check((), 0, force=False)
    with pytest.raises(BadInputError, match="is a link"), output.locked():
        output.restart()
    assert contents(precious) == {"mine.txt": b"mine".hex()}
    if os.geteuid() == 0:
        output.partial.unlink()
        output.partial.mkdir()
        os.chown(output.partial, 65534, 65534)
        with pytest.raises(BadInputError, match="is another user's"), output.locked():
            output.restart()


def test_a_file_that_comes_while_its_folder_is_replaced_is_not_lost(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, over = tmp_path / "out", threading.Event()
    assert main(["merge", str(recipe), str(out)]) == 0
    made: list[str] = []

    def write() -> None:
        while not over.wait(0.001):
            name = f"mine-{len(made)}.txt"
            with contextlib.suppress(FileNotFoundError):
                (out / name).write_text("mine")
                made.append(name)
                (out / name).rename(tmp_path / name) if len(made) % 2 else None

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for seed in range(5):
            main(["merge", str(recipe), str(out), "--force", "--seed", str(seed)])
    finally:
        over.set()
        thread.join()
    left = {path.name for path in tmp_path.rglob("mine-*.txt")}
    assert set(made) == left


def test_what_a_merge_wrote_is_replaced_and_nothing_is_left_beside(recipe: Path, tmp_path: Path) -> None:
    command = ["merge", str(recipe), str(tmp_path / "out")]
    assert main(command) == 0
    before = digest_folder(tmp_path / "out")
    assert main([*command, "--force", "--seed", "2"]) == 0
    assert digest_folder(tmp_path / "out") != before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["family", "out", "recipe.yaml"]


def test_a_parent_that_cannot_be_written_is_refused_at_once(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    refused(recipe, tmp_path / "file" / "out", "cannot write to", capsys, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=20m", "emep-test", str(folder)],
            check=False,
            capture_output=True,
        ).returncode
    )
    if not mounted:
        pytest.skip("a small file system can be mounted by root alone; CI does")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_without_room_is_refused_before_the_first_tensor(
    recipe: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_disk / "filler").write_bytes(bytes(19 * 1024**2))
    assert main(["merge", str(recipe), str(small_disk / "out")]) != 0
    shown = capsys.readouterr()
    assert "no space left for" in shown.err
    assert "are free" in shown.err
    assert "tensors" not in shown.out
    assert [entry.name for entry in small_disk.iterdir()] == ["filler"]


def test_a_disk_that_fills_up_meanwhile_keeps_nothing_half_written(
    recipe: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another writer takes the room after the check: the merge finds the disk full as it writes."""
    from engines.merge.run import output as module

    check = module.check_space

    def check_and_fill(target: Path, needed: int) -> None:
        check(target, needed)
        free = os.statvfs(small_disk)
        (small_disk / "filler").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - 8192)))

    monkeypatch.setattr(module, "check_space", check_and_fill)
    assert main(["merge", str(recipe), str(small_disk / "out")]) != 0
    error = capsys.readouterr().err
    assert "no space left for" in error
    assert error.count("\n") == 1
    assert [entry.name for entry in small_disk.iterdir()] == ["filler"]


def test_an_unwritable_result_of_a_child_command_is_one_sentence(recipe: Path, tmp_path: Path) -> None:
    """The command as its users start it: no traceback, whatever the file system says."""
    done = subprocess.run(
        [sys.executable, "-m", "engines.cli", "merge", str(recipe), "/proc/emep-out"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.count("emep-engine: ") == 1
    assert "/proc" in done.stderr
