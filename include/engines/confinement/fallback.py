"""Checks every file that Python opens, before and after, for kernels without Landlock.

The check before prevents that a file outside is made or truncated. The check after uses the descriptor, so
that a link that was changed in between is detected before a byte is read. Files that libraries open in C are
not checked: an agent can refuse to work on such a node (``--require-landlock``).
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engines.confinement.confines import is_below

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir": (0,), "os.rmdir": (0,), "os.remove": (0,), "os.rename": (0, 1), "os.link": (1,),
            "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,)}  # fmt: skip
_LISTS = {"os.listdir", "os.scandir"}


def watch_openings(readable: Sequence[Path], writable: Sequence[Path]) -> None:
    """Refuse (PermissionError) all that leads outside, from now on and for good, in this process only."""
    readable = [*readable, *writable]

    def refuse_outside(path: Any, roots: Sequence[Path]) -> None:
        if isinstance(path, int) or path is None:
            return
        name = os.fsdecode(path)
        # What is relative starts at an open folder, which was checked; paths that users name are absolute.
        if name.startswith("/") and not is_below(name, roots):
            raise PermissionError(13, "outside of what this job may open", name)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and bool(flags & _WRITING)
            writes = writes or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))
            refuse_outside(path, writable if writes else readable)
        elif event in _LISTS:
            refuse_outside(arguments[0], readable)
        elif event in _CHANGES:
            for index in _CHANGES[event]:
                path = arguments[index]
                # A name itself is changed, not what it leads to: its folder counts.
                if not isinstance(path, int) and (name := os.fsdecode(path)).startswith("/"):
                    refuse_outside(
                        os.path.dirname(os.path.abspath(name)), [*writable, *_parents(name, writable)]
                    )

    sys.addaudithook(hook)
    io.open = builtins.open = _checked_open(builtins.open, readable)
    os.open = _checked_descriptor(os.open, readable)


def _parents(name: str, writable: Sequence[Path]) -> list[Path]:
    """The folder of a root that is itself made or renamed."""
    return [root.parent for root in writable if os.path.abspath(name) == str(root)]


def _check_opened(descriptor: int, name: Any, readable: Sequence[Path]) -> None:
    if isinstance(name, int):
        return
    target = os.readlink(f"/proc/self/fd/{descriptor}")
    if target.startswith("/") and not is_below(target.removesuffix(" (deleted)"), readable):
        raise PermissionError(13, "outside of what this job may open", os.fsdecode(name))


def _checked_open(plain: Callable[..., Any], readable: Sequence[Path]) -> Callable[..., Any]:
    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        found = plain(file, *arguments, **named)
        try:
            _check_opened(found.fileno(), file, readable)
        except BaseException:
            found.close()
            raise
        return found

    return opened


def _checked_descriptor(plain: Callable[..., int], readable: Sequence[Path]) -> Callable[..., int]:
    def opened(path: Any, *arguments: Any, **named: Any) -> int:
        descriptor = plain(path, *arguments, **named)
        try:
            _check_opened(descriptor, path, readable)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    return opened
