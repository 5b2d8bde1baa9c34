"""Isolates a supervisor's run: a folder for its temporary files, and no view into the supervisor itself."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_PR_SET_DUMPABLE = 4


class Scratch:
    """The run's folder for temporary files, once it is made; a run without confines has none."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def make(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Make the folder where the run is confined; the variables that tell the engine of it.

        Raises OSError where the disk takes none.
        """
        if not environment.get("EMEP_CONFINES"):
            return {}
        import tempfile

        self._folder = tempfile.mkdtemp(prefix="emep-run-", dir=environment.get("TMPDIR") or None)
        return {"EMEP_SCRATCH": self._folder}

    def remove(self) -> None:
        """Remove what is there; best effort."""
        if self._folder is not None:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)


def hide_from_own_user() -> None:
    """Keep other processes of the same user from this one's environment (the lease's token) and memory."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
