"""The confines of one job: the document that the control plane hands down, as folders of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from engines.contract import BadInputError, EngineError

VARIABLE = "EMEP_CONFINES"
_VERSION = 1


class OutsideError(BadInputError):
    """A path that this job may not read or write."""

    def __init__(self, message: str, *, file: str, field: str | None = None) -> None:
        super().__init__(message, code="outside", file=file, field=field)


@dataclass(frozen=True)
class Confines:
    """Folders with every link resolved."""

    run: Path
    """The run's own folder, where relative outputs start."""
    checkpoints: Path
    project: Path
    """All runs of the project, to be read."""
    reads: tuple[Path, ...] = ()
    """The policy's ``roots.read``."""
    writes: tuple[Path, ...] = ()
    """The policy's ``roots.write``."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], beside: Path) -> Confines | None:
        """The confines of this process; None if it has none.

        ``beside``: the folder to use where the environment names no root. Raises EngineError for a document
        that cannot be understood, so that nothing runs.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            document = json.loads(text)
            if document["version"] != _VERSION:
                raise ValueError("version")
            run, project, key = (_inner(document[name]) for name in ("run", "project", "checkpoints"))
            reads, writes = (_folders(document[name]) for name in ("read", "write"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EngineError(
                f"{VARIABLE} cannot be understood: this emep-engine is of another version than the "
                f"control plane",
                code="confines",
            ) from error
        artifacts = folder_of(environment.get("EMEP_ARTIFACT_URI"), beside / "artifacts")
        checkpoints = folder_of(environment.get("EMEP_CHECKPOINT_URI"), beside / "checkpoints" / key)
        if not checkpoints.as_posix().endswith(f"/{key}"):
            # A pod's template may say where checkpoints lie inside it; each piece of work has its own folder.
            checkpoints = checkpoints / key
        return cls(artifacts / run, checkpoints, artifacts / project, reads, writes)

    @property
    def writable(self) -> tuple[Path, ...]:
        """What may be written."""
        return (self.run, self.checkpoints, *self.writes)

    @property
    def readable(self) -> tuple[Path, ...]:
        """What may be read."""
        return (*self.writable, self.project, *self.reads)

    def check_read(self, path: Path | str, field: str | None = None) -> None:
        """Raise OutsideError if this job may not read ``path`` with its links resolved."""
        if not is_below(path, self.readable):
            roots = ", ".join(map(str, self.reads)) or "none"
            raise OutsideError(
                f"{_named(field)}{path} lies outside of what this job may read: runs of its project in "
                f"{self.project} and the policy's roots.read ({roots}). Links are resolved first. "
                f"Put it there, or "
                "ask an administrator to add its folder to roots.read",
                file=str(path),
                field=field,
            )

    def check_write(self, path: Path | str, field: str | None = None) -> None:
        """Raise OutsideError if this job may not write ``path`` with its links resolved."""
        if not is_below(path, self.writable):
            roots = ", ".join(map(str, self.writes)) or "none"
            raise OutsideError(
                f"{_named(field)}{path} lies outside of what this job may write: its own folder "
                f"{self.run} and the "
                f"policy's roots.write ({roots}). Links are resolved first. Leave the field out, or "
                f"give a relative "
                "path without '..', which starts there",
                file=str(path),
                field=field,
            )


def resolved(path: Path | str) -> str:
    """The path with every link and ``..`` resolved, whether its end exists or not."""
    return os.path.realpath(path)


def is_below(path: Path | str, roots: Sequence[Path]) -> bool:
    """Whether a path, once resolved, is one of the folders or inside one."""
    try:
        real = resolved(path)
    except (OSError, ValueError):
        return False
    return any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in map(resolved, roots))


def folder_of(uri: str | None, default: Path) -> Path:
    """The local folder of the control plane's URI or path. Raises EngineError for another kind of URI."""
    if not uri:
        return default
    parts = urlsplit(uri)
    if parts.scheme == "":
        return Path(uri).absolute()
    if parts.scheme != "file":
        raise EngineError(f"{uri}: jobs are confined to folders; use file:///absolute/path", code="confines")
    return Path(unquote(parts.path))


def _inner(text: str) -> str:
    """A relative path of plain names, as the control plane makes them."""
    if not text or any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(text)
    return text


def _folders(texts: Sequence[str]) -> tuple[Path, ...]:
    if not all(isinstance(text, str) and text.startswith("/") for text in texts):
        raise ValueError("roots")
    return tuple(Path(text) for text in texts)


def _named(field: str | None) -> str:
    return f"{field}: " if field else ""
