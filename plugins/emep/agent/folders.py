"""Run folders: the state that survives a kill of the agent, one folder for each (allocation, epoch).

``order.json`` the start order, ``SPEC.json`` the engine's input, ``claim.json`` who runs it (written by the
wrapper, once), ``supervisor.json`` the supervisor's process, ``log.txt`` its output, ``shipped`` how much of
it the API has, ``result.json`` the engine's result, ``exit.json`` how it ended, ``done.json`` the API knows.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from emep.agent.process import ProcessIdentity
from emep.wire.nodes import StartOrder

if TYPE_CHECKING:
    from emep.agent.run_as import RunAs

MAX_RESULT_BYTES = 64 * 1024**2
"""Largest Result that is read."""
Key = tuple[str, int]
"""(allocation id, epoch): the one thing that is never run twice."""


def write_atomically(path: Path, text: str) -> None:
    """Write beside, then rename. Only the owner may read: orders hold lease tokens."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def takes_files(folder: Path, size: int = 64 * 1024) -> bool:
    """Whether a file of ``size`` bytes, more than an order has, can be written into the folder now."""
    probe = folder / ".probe"
    try:
        probe.write_bytes(bytes(size))
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True


def read_json(path: Path) -> Any:
    """A JSON file's value; None where there is none (or an unreadable one: half-written by someone else)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_foreign_json(path: Path) -> Any:
    """``read_json`` for a file that another user may have put there: a plain file, no link and no pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            data = file.read(MAX_RESULT_BYTES + 1)
        return json.loads(data) if len(data) <= MAX_RESULT_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def work(self) -> Path:
        """The folder that the engine's user may write; a separate one if that is not the agent's user."""
        inner = self.path / "work"
        return inner if inner.is_dir() else self.path

    @property
    def spec(self) -> Path:
        """The engine's input."""
        return self.work / "SPEC.json"

    @property
    def result(self) -> Path:
        """Where the supervisor writes the Result."""
        return self.work / "result.json"

    @property
    def log(self) -> Path:
        """Standard output and error of the run."""
        return self.path / "log.txt"

    def order(self) -> StartOrder | None:
        """The start order; None if the agent was killed before it had written it."""
        document = read_json(self.path / "order.json")
        try:
            return StartOrder.model_validate(document)
        except ValueError:
            return None

    def claim(self) -> ProcessIdentity | None:
        """The wrapper that runs or ran this; it leads the run's session."""
        return _identity(self.path / "claim.json")

    def supervisor(self) -> ProcessIdentity | None:
        """The supervisor's process, to which SIGTERM goes."""
        return _identity(self.path / "supervisor.json")

    def exit_code(self) -> int | None:
        """Exit status that the wrapper wrote down; None if it could not."""
        document = read_json(self.path / "exit.json")
        return int(document["exit_code"]) if isinstance(document, dict) and "exit_code" in document else None

    def result_document(self) -> dict[str, Any] | None:
        """The Result, or None."""
        document = read_foreign_json(self.result)
        return document if isinstance(document, dict) else None

    def shipped(self) -> int:
        """Bytes of the log that the API has."""
        value = read_json(self.path / "shipped")
        return value if isinstance(value, int) and value >= 0 else 0

    def set_shipped(self, offset: int) -> None:
        """Remember how many bytes of the log the API has."""
        write_atomically(self.path / "shipped", str(offset))

    def done(self) -> dict[str, Any] | None:
        """``{"exit_code", "time"}`` once the API knows the end of this run (or has refused it)."""
        document = read_json(self.path / "done.json")
        return document if isinstance(document, dict) else None

    def set_done(self, exit_code: int) -> None:
        """Mark the run as over and reported."""
        write_atomically(self.path / "done.json", json.dumps({"exit_code": exit_code, "time": time.time()}))


def _identity(path: Path) -> ProcessIdentity | None:
    document = read_json(path)
    try:
        return ProcessIdentity.from_document(document)
    except (KeyError, TypeError, ValueError):
        return None


class RunFolders:
    """The folder of run folders below the agent's state folder."""

    def __init__(self, state_dir: Path, run_as: RunAs | None = None) -> None:
        self.root, self._run_as = state_dir / "runs", run_as
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another user passes through to its own folder, and can list nothing on the way.
        self._mode = 0o700 if run_as is None else 0o711
        for folder in (state_dir, self.root):
            folder.chmod(self._mode)

    def create(self, order: StartOrder) -> RunFolder | None:
        """A folder for an order, with ``order.json`` and ``SPEC.json``; None if this run was taken before.

        Raises OSError, and leaves nothing, where the disk takes nothing.
        """
        path = self.root / f"{quote(order.allocation_id, safe='')}.{order.epoch}"
        try:
            path.mkdir(mode=self._mode)
        except FileExistsError:
            return None
        folder = RunFolder(path)
        try:
            if self._run_as is not None:
                path.chmod(self._mode)
                (path / "work").mkdir(mode=0o700)
            write_atomically(folder.spec, json.dumps(order.spec, indent=1))
            write_atomically(path / "order.json", order.model_dump_json())
            os.close(os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            if self._run_as is not None:
                self._run_as.own(folder.spec)
                self._run_as.own(folder.work)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return folder

    def all(self) -> list[RunFolder]:
        """Every run folder, by name."""
        return [RunFolder(path) for path in sorted(self.root.iterdir()) if path.is_dir()]

    def discard(self, folder: RunFolder) -> None:
        """Remove a folder; renamed first, so that a wrapper that is just starting finds nothing to claim."""
        grave = folder.path.with_name(f".gone-{folder.path.name}-{time.time_ns()}")
        folder.path.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)

    def clean(
        self, now: float, keep: int = 20, keep_failed_seconds: float = 86400.0, keep_failed: int = 200
    ) -> int:
        """Remove reported runs: all but the last ``keep``, failed ones once a day old. Returns how many.

        Nothing goes within ten minutes of its end, so that a repeated order still finds that it was done.
        """
        finished = [
            (done["time"], done["exit_code"], folder) for folder in self.all() if (done := folder.done())
        ]
        finished.sort(key=lambda entry: entry[0], reverse=True)
        removed = failed = 0
        for number, (ended, code, folder) in enumerate(finished):
            failed += code != 0
            wanted = number < keep or (
                code != 0 and now - ended < keep_failed_seconds and failed <= keep_failed
            )
            if not wanted and now - ended > 600:
                self.discard(folder)
                removed += 1
        return removed
