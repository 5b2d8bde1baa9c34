"""The folder that a merge writes: beside its name, under a lock, renamed when complete, resumable."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engines.artifacts import canonical_json, digest_file
from engines.artifacts.folder import fsync_folder, rename_folder
from engines.artifacts.target import check_only_written, check_parent, check_space, check_target
from engines.checkpoint_folders import check_own_folder
from engines.confinement import current
from engines.contract import BadInputError, EngineError
from engines.merge.plan.vocabulary import TOKENIZER_FILES
from engines.tensor.layout import ModelLayout, read_json_object

MANIFEST = "emep_merge.json"
DONOR_FILES = ("generation_config.json", "preprocessor_config.json", "processor_config.json")
_LOCK = ".lock"
_NAME_BYTES = 200
"""File systems take 255; the hidden folder's name is longer than the output's."""


def check_name(name: str, field: str) -> None:
    """Raise BadInputError for a name that is too long for a folder and the hidden one beside it."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > _NAME_BYTES:
        raise BadInputError(
            f"{field}: {name[:40]}... has {size} bytes, a name may have {_NAME_BYTES}", field=field
        )


def hidden_checkpoints(target: Path) -> Path:
    """Where a merge by the command line keeps its checkpoints."""
    return target.with_name(f".{target.name}.checkpoints")


class OutputFolder:
    """``target`` and the hidden folder beside it that becomes it.

    ``digest`` tells this work's from others'. Raises BadInputError for a name that is too long for both.
    """

    def __init__(self, target: Path, digest: str) -> None:
        check_name(target.name, "output")
        self.target = target
        self.partial = target.with_name(f".{target.name}.{digest[:16]}.partial")
        self._verified: dict[str, tuple[int, int, int]] = {}
        """Files of the target that are as a merge wrote them: inode, size and time of change."""

    def check(self, inputs: Iterable[Path], size: int, *, force: bool) -> None:
        """Refuse, before any tensor is read, a target that cannot be written or must not be replaced.

        ``inputs``: folders and files that the merge reads; ``size``: bytes that it writes. ``force`` replaces
        a folder that a merge wrote and that holds nothing else. Raises BadInputError, and EngineError where
        the disk has no room.
        """
        check_target(self.target, inputs)
        if os.path.lexists(self.target):
            if not force:
                raise BadInputError(
                    f"{self.target} exists already; choose another name or overwrite it with --force",
                    code="output_exists",
                    file=str(self.target),
                    field="output",
                )
            if os.path.ismount(self.target):
                raise self._refused("is a mount point, which cannot be replaced; name a folder in it")
            self._check_replaceable()
        check_parent(self.target)
        self._check_partial()
        done = sum(entry.stat().st_size for entry in self.partial.glob("*")) if self.partial.is_dir() else 0
        check_space(self.target, max(0, size - done))

    def _check_replaceable(self) -> None:
        """Only what a merge wrote is replaced: its manifest says so. Raises BadInputError."""
        if not any(self.target.iterdir()):
            return
        manifest = self.manifest()
        written = manifest.get("outputs") if manifest else None
        if not isinstance(written, dict):
            raise self._refused(
                f"was not written by a merge ({MANIFEST} is not there); --force replaces only what a merge "
                "wrote. Choose another name"
            )
        check_only_written(self.target, [*written, MANIFEST], "the merge")
        for entry in sorted(self.target.iterdir()):
            if entry.name != MANIFEST and not self._is_as_written(entry, written[entry.name]):
                raise self._refused(
                    f"holds {entry.name}, which is not as the merge wrote it any more; move it away"
                )

    def _is_as_written(self, file: Path, digest: Any) -> bool:
        """Whether a file is the manifest's: that may have been copied, and a file edited."""
        if file.is_symlink() or not file.is_file():
            return False
        status = file.stat()
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        if self._verified.get(file.name) != stamp:
            if digest_file(file)[0] != digest:
                return False
            self._verified[file.name] = stamp
        return True

    def _check_partial(self) -> None:
        # A job's run folder is its own, and agents may change their engines' user.
        if current() is None:
            check_own_folder(self.partial)

    def _refused(self, why: str) -> BadInputError:
        return BadInputError(
            f"{self.target} {why}", code="output_refused", file=str(self.target), field="output"
        )

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of a complete target, None where there is none."""
        path = self.target / MANIFEST
        return read_json_object(path, "") if path.is_file() else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this writer. The lock ends with the process. Raises EngineError."""
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            # Some file systems (/proc, network mounts) refuse what os.access has allowed.
            raise BadInputError(
                f"cannot write to {self.target.parent}: {error.strerror}",
                file=str(self.target.parent),
                field="output",
            ) from error
        self._check_partial()
        with (self.partial / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"{self.target} is being written by another process"
                raise EngineError(message, code="busy", file=str(self.target)) from error
            yield

    def restart(self) -> None:
        """Drop what an earlier writer left."""
        for entry in self.partial.iterdir():
            if entry.name != _LOCK:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def discard(self) -> None:
        """Remove the hidden folder: nothing of this work stays."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def copy_from(self, donor: ModelLayout, tokenizer: ModelLayout) -> dict[str, str]:
        """Copy tokenizer and generation files byte for byte; returns their digests by name."""
        digests = {}
        for folder, names in ((donor.folder, DONOR_FILES), (tokenizer.folder, TOKENIZER_FILES)):
            for name in names:
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, self.partial / name)
                    digests[name], _ = digest_file(self.partial / name)
        return digests

    def write_json(self, name: str, value: Any) -> str:
        """Write a JSON file for people (indented, sorted keys); returns its digest."""
        canonical_json(value)  # refuses NaN with its path
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (self.partial / name).write_text(text, encoding="utf-8")
        return digest_file(self.partial / name)[0]

    def publish(self, *, force: bool) -> None:
        """Make the folder durable and give it its name; with ``force`` in place of what has it now."""
        for entry in self.partial.iterdir():
            with entry.open("rb") as file:
                os.fsync(file.fileno())
        (self.partial / _LOCK).unlink()
        fsync_folder(self.partial)
        if force and os.path.lexists(self.target):
            self._replace()
        else:
            rename_folder(self.partial, self.target)

    def _replace(self) -> None:
        """Take the target's name, after another check of its content, which may have changed meanwhile."""
        check_target(self.target, ())
        self._check_replaceable()
        old = self.target.with_name(f".{self.target.name}.{uuid.uuid4().hex[:8]}.old")
        self.target.rename(old)
        try:
            # Nothing more comes in by the name: what came in since the look is not lost.
            if any(old.iterdir()):
                check_only_written(old, [*self._verified, MANIFEST], "the merge")
            rename_folder(self.partial, self.target)
        except BaseException:
            old.rename(self.target)
            raise
        for name in (*self._verified, MANIFEST):
            (old / name).unlink(missing_ok=True)
        with suppress(OSError):  # another program has put a file there through the open folder: it stays
            old.rmdir()
