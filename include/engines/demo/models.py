"""The demo's models, tasks and recipes: ``python -m engines.demo.models OUT_DIR [--seed N] [--small]``.

A base that reads digits moderately, two experts that each read one way of standing well and forget the other,
and a parent that was trained on shuffled labels. Averaging all parents lets the harmful one spoil the rest,
however the common weight is chosen; a search over one weight per parent learns to leave it out.

What is there and whole is used again: each part has a manifest with its files' digests, and is renamed into
place.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.artifacts import digest_file, write_atomically
from engines.contract import BadInputError, EngineError
from engines.demo import digits
from engines.demo.recipes import BASE, PARENTS, recipes, to_yaml

if TYPE_CHECKING:
    from engines.demo.training import State

LOG = logging.getLogger("engines.demo")
VERSION = 1
"""Raised when the same settings would make other models."""
MANIFEST = "manifest.json"
_MAKING, _LOCK = ".making", ".lock"
_OURS = "The demo's models are made here.\n"
"""What the lock's file says: a set may lack its manifest, where its making was killed."""


@dataclass(frozen=True)
class Sizes:
    """How much is trained, and how many images the splits hold."""

    base_epochs: int = 4
    expert_epochs: int = 12
    harm_epochs: int = 8
    harm_rate: float = 3e-3
    search_images: int = 300
    report_images: int = 420


FULL = Sizes()
SMALL = Sizes(
    base_epochs=3,
    expert_epochs=4,
    harm_epochs=3,
    search_images=200,
    report_images=300,
)


@dataclass(frozen=True)
class DemoFiles:
    """The paths of all parts."""

    folder: Path
    base: Path
    parents: dict[str, Path]
    search_tasks: tuple[Path, ...]
    """One per skill: for choosing merges."""
    report_tasks: tuple[Path, ...]
    """One per skill, other images: for telling how good they are."""
    recipes: dict[str, Path]
    """task_arithmetic, dare_ties, evolve."""


def prepare(
    out_dir: str | Path,
    small: bool = False,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = LOG.info,
) -> DemoFiles:
    """Make, or find again, the demo's models, tasks and recipes under ``out_dir``.

    ``small``: about half of the training, for tests. ``progress`` gets a line per finished part. Raises
    BadInputError where the folder holds something else or cannot be written.
    """
    folder = Path(out_dir).absolute()
    sizes = SMALL if small else FULL
    settings = {"version": VERSION, "seed": seed, **asdict(sizes)}
    files = _files(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _whole(folder, settings):
            _check_folder(folder)
        with (folder / _LOCK).open("a+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second caller waits, and finds the first one's models
            lock.seek(0)
            if lock.read() != _OURS:
                lock.truncate(0)
                lock.write(_OURS)
                lock.flush()
            if _whole(folder, settings):
                progress(f"models of an earlier run are whole: {folder}")
                return files
            made = folder / _MAKING
            shutil.rmtree(made, ignore_errors=True)  # of a run that was killed
            made.mkdir()
            try:
                _make(made, folder, sizes, seed, progress)
                _publish(made, folder, settings)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise BadInputError(
            f"{folder}: cannot write the demo's models: {error.strerror}", file=str(folder)
        ) from error
    return files


def _files(folder: Path) -> DemoFiles:
    return DemoFiles(
        folder=folder,
        base=folder / BASE,
        parents={name: folder / name for name in PARENTS},
        search_tasks=tuple(folder / "tasks" / f"{skill}_search.jsonl" for skill in digits.SKILLS),
        report_tasks=tuple(folder / "tasks" / f"{skill}_report.jsonl" for skill in digits.SKILLS),
        recipes={name: folder / "recipes" / f"{name}.yaml" for name in recipes(folder)},
    )


PARTS = (BASE, *PARENTS, "tasks", "recipes")


def _whole(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds exactly what these settings make, every byte of it."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["settings"] != settings or manifest["folder"] != str(folder):
            return False
        return all(digest_file(folder / name)[0] == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _check_folder(folder: Path) -> None:
    """Refuse to overwrite files that this program did not write."""
    strangers = [
        entry.name for entry in folder.iterdir() if entry.name not in {*PARTS, MANIFEST, _MAKING, _LOCK}
    ]
    manifest = _manifest(folder)
    if not strangers and manifest is None and not _is_claimed(folder):
        strangers = [name for name in (*PARTS, MANIFEST, _MAKING) if os.path.lexists(folder / name)]
    if not strangers and manifest is not None:
        found = (file for part in PARTS for file in (folder / part).rglob("*") if not file.is_dir())
        names = (file.relative_to(folder).as_posix() for file in found)
        strangers = [name for name in names if name not in manifest["files"]]
    if strangers:
        raise BadInputError(
            f"{folder} holds other things ({', '.join(sorted(strangers)[:3])}); give a new folder",
            file=str(folder),
        )


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a set that was made here or moved here; None where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest if isinstance(manifest["files"], dict) and manifest["settings"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_claimed(folder: Path) -> bool:
    try:
        return (folder / _LOCK).read_text(encoding="utf-8") == _OURS
    except (OSError, ValueError):
        return False


def _publish(made: Path, folder: Path, settings: dict[str, Any]) -> None:
    """Rename the parts into place.

    The old manifest is removed first and the new one comes last, so a broken set never counts as complete.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    files = {}
    for part in PARTS:
        for file in sorted((made / part).rglob("*")):
            if file.is_file():
                files[file.relative_to(made).as_posix()] = digest_file(file)[0]
        old = made / f"old-{part}"
        if (folder / part).exists():
            (folder / part).rename(old)
        (made / part).rename(folder / part)
    manifest = {"settings": settings, "folder": str(folder), "files": files}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode())


def _make(made: Path, folder: Path, sizes: Sizes, seed: int, progress: Callable[[str], None]) -> None:
    """Everything under ``made``; recipes name their final place ``folder``."""
    from engines.demo.checkpoint import write_checkpoint
    from engines.demo.training import CONFIG, one_thread

    data = digits.load()
    splits = digits.split(data.labels, search=sizes.search_images, report=sizes.report_images)
    (made / "tasks").mkdir()
    for skill in digits.SKILLS:
        for name, images in (("search", splits.search), ("report", splits.report)):
            lines = [json.dumps(item) + "\n" for item in digits.items(data, skill, images)]
            (made / "tasks" / f"{skill}_{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (made / "recipes").mkdir()
    for name, recipe in recipes(folder).items():
        (made / "recipes" / f"{name}.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    with one_thread():
        states = _train(data, splits, sizes, seed, progress)
    for name, state in states.items():
        (made / name).mkdir()
        write_checkpoint(made / name, state, CONFIG)


def _train(
    data: digits.Digits, splits: digits.Splits, sizes: Sizes, seed: int, progress: Callable[[str], None]
) -> dict[str, State]:
    import torch

    from engines.demo.training import Lesson, initial_state, train

    words = {skill: torch.from_numpy(data.words[skill][splits.train]) for skill in digits.SKILLS}
    labels = torch.from_numpy(data.labels[splits.train])
    both, twice = torch.cat([words[skill] for skill in digits.SKILLS]), torch.cat([labels, labels])
    shuffled = twice[torch.randperm(len(twice), generator=torch.Generator().manual_seed(seed + 4))]
    models = {BASE: train(initial_state(seed), Lesson(both, twice, sizes.base_epochs, 3e-3), seed)}
    progress(f"{BASE} trained on both skills, {sizes.base_epochs} epochs")
    lessons = {
        PARENTS[0]: Lesson(words["upright"], labels, sizes.expert_epochs, 2e-3),
        PARENTS[1]: Lesson(words["turned"], labels, sizes.expert_epochs, 2e-3),
        PARENTS[2]: Lesson(both, shuffled, sizes.harm_epochs, sizes.harm_rate),
    }
    for number, (name, lesson) in enumerate(lessons.items(), start=1):
        models[name] = train(models[BASE], lesson, seed + number)
        progress(f"{name} trained, {lesson.epochs} epochs")
    return models


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m engines.demo.models", description="Make the demo's models."
    )
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (default: 0)")
    parser.add_argument("--small", action="store_true", help="train less, for tests")
    given = parser.parse_args(arguments)
    try:
        prepare(given.out_dir, given.small, seed=given.seed, progress=_say)
    except EngineError as error:
        sys.stderr.write(f"engines.demo.models: {error.message}\n")
        return 2
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
