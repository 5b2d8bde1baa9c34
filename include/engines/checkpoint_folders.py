"""The hidden folders in which a command line keeps its checkpoints, beside or in its output.

Such a folder is found by its name alone, and another program, another user or a link may have that name. Only
a folder of this very user's is used, and only what checkpoints are is ever removed from it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from engines.contract import BadInputError

_FILES = re.compile(r"\.lock|fence|\.emep-[0-9a-f]{32}")
_STEP = re.compile(r"step-\d{8,}|\.step-[0-9a-f]{32}")
_IN_A_STEP = re.compile(r"manifest\.json|state\.json|tensors\.safetensors|\.emep-[0-9a-f]{32}")
_RANK = re.compile(r"rank-\d+")


def check_own_folder(folder: Path, *, field: str = "output") -> None:
    """Refuse a hidden folder that is none of this user's: a link, a file, another user's folder.

    What lies in such a folder is truncated and removed, so a user who may put one there could choose what is.
    Raises BadInputError; one that does not exist is fine.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise _refused(folder, f"is a link, to {os.readlink(folder)}; remove it", field)
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(folder, "is no folder; remove it", field)
    if found.st_uid != os.geteuid():
        raise _refused(folder, "is another user's; choose another output", field)


def check_checkpoints(folder: Path, *, field: str = "output") -> None:
    """Refuse a folder for checkpoints in which something else lies. Raises BadInputError that names it."""
    check_own_folder(folder, field=field)
    if not folder.is_dir():
        return
    foreign = next((entry.name for entry in _sorted(folder) if not _is_ours(entry)), None)
    if foreign is not None:
        raise _refused(folder, f"holds {foreign}, which is no checkpoint; move it away", field)


def remove_checkpoints(folder: Path) -> None:
    """Remove checkpoints and their folder, and nothing else that lies there; best effort."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for entry in _sorted(folder):
        if not _is_ours(entry):
            continue
        if not entry.is_dir(follow_symlinks=False):
            with suppress(OSError):
                os.unlink(entry.path)
        elif _RANK.fullmatch(entry.name):
            remove_checkpoints(Path(entry.path))
        else:
            shutil.rmtree(entry.path, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def _sorted(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from sorted(entries, key=lambda entry: entry.name)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether a CheckpointStore has written it. A process that was killed may have left half of a step."""
    if entry.is_symlink():
        return False
    if not entry.is_dir(follow_symlinks=False):
        return _FILES.fullmatch(entry.name) is not None
    if _RANK.fullmatch(entry.name):
        return all(map(_is_ours, _sorted(Path(entry.path))))
    if _STEP.fullmatch(entry.name) is None:
        return False
    held = _sorted(Path(entry.path))
    return all(_IN_A_STEP.fullmatch(one.name) and one.is_file(follow_symlinks=False) for one in held)


def _refused(folder: Path, why: str, field: str) -> BadInputError:
    return BadInputError(f"{folder} {why}", code="output_refused", file=str(folder), field=field)
