"""Checks of a command's output folder before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from engines.contract import BadInputError, EngineError

_SPARE_BYTES = 16 * 1024**2
"""For manifests, tokenizers and the file system's own needs."""


def check_target(target: Path, inputs: Iterable[Path], *, field: str = "output") -> None:
    """Refuse a folder whose replacement would destroy what is not an output.

    A link, a file, an input or a folder that holds one, the working folder or a folder that holds it. Raises
    BadInputError.
    """
    check_kind(target, field=field)
    mine = target.resolve()
    for place in inputs:
        folder = place.resolve()
        if folder == mine:
            raise _refused(target, f"is an input ({place}); choose another name", field)
        if folder.is_relative_to(mine):
            raise _refused(target, f"holds an input ({place}); choose another name", field)
    if Path.cwd().resolve().is_relative_to(mine):
        raise _refused(target, "is the working folder, or holds it; choose another name", field)


def check_kind(target: Path, *, field: str = "output") -> None:
    """Refuse a link and a file where a folder is to be written. Raises BadInputError."""
    if target.is_symlink():
        raise _refused(target, f"is a link, to {os.readlink(target)}; name the folder itself", field)
    if target.exists() and not target.is_dir():
        raise _refused(target, "is a file; name a folder", field)


def check_parent(target: Path, *, field: str = "output") -> None:
    """Raise BadInputError where the target's folder cannot be made or written to."""
    parent = next(folder for folder in target.parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BadInputError(f"cannot write to {parent}", file=str(parent), field=field)


def check_space(target: Path, needed: int, *, field: str = "output") -> None:
    """Raise EngineError if the file system has less than ``needed`` bytes left for an unprivileged user."""
    parent = next(folder for folder in target.parents if folder.exists())
    try:
        status = os.statvfs(parent)
    except OSError:
        return
    free = status.f_bavail * status.f_frsize
    if free < needed + _SPARE_BYTES:
        raise disk_full(target, f"{_megabytes(needed)} are needed and {_megabytes(free)} are free", field)


def check_only_written(target: Path, written: Iterable[str], wrote: str) -> None:
    """Refuse to replace a folder that holds other files than ``written``. Raises BadInputError naming one."""
    known = set(written)
    for entry in sorted(target.iterdir()):
        if entry.name not in known or (entry.is_dir() and not entry.is_symlink()):
            raise _refused(target, f"holds {entry.name}, which {wrote} did not write; move it away", "output")


def disk_full(target: Path, why: str, field: str | None = None) -> EngineError:
    """The failure of a write for want of space, in one sentence."""
    return EngineError(
        f"no space left for {target}: {why}. Free some, or choose another place",
        code="disk_full",
        file=str(target),
        field=field,
    )


def _refused(target: Path, why: str, field: str) -> BadInputError:
    return BadInputError(f"{target} {why}", code="output_refused", file=str(target), field=field)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
