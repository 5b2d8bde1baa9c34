"""Confines this process: makes the folders, sets the kernel's rules, and words errors of refused files."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from engines.confinement import landlock, system
from engines.confinement.confines import Confines, OutsideError
from engines.confinement.fallback import watch_openings
from engines.confinement.privileges import give_up_privileges
from engines.contract import EngineError

REQUIRE = "EMEP_REQUIRE_LANDLOCK"
"""Set by an agent that starts engines only if the kernel confines them."""
SCRATCH = "EMEP_SCRATCH"
"""The run's own folder for temporary files; its supervisor makes and removes it."""
_current: Confines | None = None


def current() -> Confines | None:
    """The confines of this process; None where it has none."""
    return _current


def confine(confines: Confines) -> str:
    """Confine this process and its children for good; return the means (``landlock`` or ``openings``).

    Call it once, before other threads are started. Raises EngineError if the folders cannot be made, or if
    Landlock is required and not available.
    """
    global _current  # noqa: PLW0603 - a process is confined once, as the kernel has it
    for folder in (confines.run, confines.checkpoints):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(
                f"cannot make {folder}: {error.strerror}", code="storage", file=str(folder)
            ) from error
    scratch = Path(os.environ.get(SCRATCH) or tempfile.mkdtemp(prefix="emep-run-"))
    system.keep_caches_in(scratch, os.environ)
    _current = confines
    written = [*confines.writable, scratch]
    allowed = [
        *((path, landlock.SYSTEM) for path in system.readable(os.environ)),
        *((path, landlock.DEVICE) for path in system.devices()),
        *((path, landlock.READ) for path in confines.readable),
        *((path, landlock.WRITE) for path in written),
    ]
    if landlock.version():
        landlock.restrict(allowed)
        give_up_privileges()
        return "landlock"
    if os.environ.get(REQUIRE):
        raise EngineError(
            "this node's kernel does not confine processes (Landlock), which its agent requires: "
            "allow the calls "
            "landlock_* in the container, use Linux 5.13 or newer, or start the agent without "
            "--require-landlock",
            code="confines",
        )
    sys.stderr.write(
        "emep-engine: this kernel does not confine processes (Landlock): paths are checked as they "
        "are opened\n"
    )
    watch_openings(readable=[path for path, _ in allowed], writable=[*written, *system.devices()])
    return "openings"


def check_read(path: Path | str, field: str | None = None) -> None:
    """Raise OutsideError where this process's job may not read ``path``; nothing without confines."""
    if _current is not None:
        _current.check_read(path, field)


def check_write(path: Path | str, field: str | None = None) -> None:
    """Raise OutsideError where this process's job may not write ``path``; nothing without confines."""
    if _current is not None:
        _current.check_write(path, field)


def refused_by_the_system(error: BaseException) -> OutsideError | None:
    """The sentence for an opening that was refused to a confined process; None for any other error."""
    if _current is None or not isinstance(error, PermissionError) or not error.filename:
        return None
    return OutsideError(
        f"{error.filename} cannot be opened: it leads outside of what this job may read or write "
        f"(its run's folder "
        f"{_current.run}, its project's runs, the policy's roots), or this node's user may not open it",
        file=str(error.filename),
    )
