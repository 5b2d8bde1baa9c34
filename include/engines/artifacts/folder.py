"""FolderArtifactStore: the ArtifactStore over a folder (``file:///path``), safe for concurrent processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from engines.artifacts.store import Keys, canonical_json, digest_file, digest_folder
from engines.confinement.process import check_read
from engines.contract import BadInputError, Output

_NAME_MAX, _PATH_MAX = 255, 4096
"""Bytes of one name and of a whole path with its end, on Linux."""
_DEEPEST = 200
"""Folders in one another: Python makes and removes deeper ones by recursion, which ends before."""
_BESIDE = ".emep-"
"""Prefix of names that are being written; never listed."""


def path_to_uri(path: Path | str) -> str:
    """``file:///...`` of a local path, made absolute."""
    return "file://" + quote(str(Path(path).absolute()))


def uri_to_path(uri: str) -> Path:
    """Local path of a ``file:///...`` URI or plain path.

    Raises BadInputError for other schemes and hosts, for what no file system can hold, and (OutsideError) for
    what this process's job may not read.
    """
    path = local_path(uri)
    check_read(path)
    return path


def local_path(uri: str) -> Path:
    """As ``uri_to_path``, for a path that is not read by that name: only its form is checked."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = None
    if parts is not None and not parts.scheme:
        return check_path(uri).absolute()
    if parts is None or parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise BadInputError(f"{uri} is not a file:///absolute/path URI or a path on this machine", file=uri)
    return check_path(unquote(parts.path))


def check_path(text: str) -> Path:
    """``text`` as a path. Raises BadInputError where the system would refuse even to look for it."""
    encoded = text.encode("utf-8", "surrogatepass")
    longest = max(map(len, encoded.split(b"/")))
    if longest > _NAME_MAX or len(encoded) >= _PATH_MAX:
        raise BadInputError(
            f"{text[:60]}...: no path is that long ({longest} bytes in one name, {len(encoded)} in all); "
            f"at most {_NAME_MAX} and {_PATH_MAX - 1}",
            file=text[:_NAME_MAX],
        )
    if encoded.count(b"/") > _DEEPEST:
        raise BadInputError(
            f"{text[:60]}...: no path here has more than {_DEEPEST} folders in one another",
            file=text[:_NAME_MAX],
        )
    if "\0" in text or any("\ud800" <= character <= "\udbff" for character in text):
        raise BadInputError(f"{text!r}: no path has such a character", file=repr(text))
    return Path(text)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable (a rename is, once its folder is synced)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, sync, rename: ``path`` is what it was or all of ``data``, after a power cut too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    try:
        _write_durably(beside, data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    fsync_folder(path.parent)


class FolderArtifactStore:
    """Artifacts as files under one folder."""

    def __init__(self, uri: str) -> None:
        self.root = uri_to_path(uri)
        self.uri = path_to_uri(self.root)

    def path_of(self, key: str) -> Path:
        """Local path of a key. Raises BadInputError where it would leave the store, through a link too."""
        parts = PurePosixPath(key).parts
        if not key or key.startswith("/") or "\\" in key or "\0" in key or ".." in parts or not parts:
            raise BadInputError(f"{key!r} is no artifact key: use a relative path without '..'", field="key")
        path = self.root.joinpath(*parts)
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise BadInputError(f"{key!r} leads out of {self.uri} through a link", field="key")
        return path

    def uri_of(self, key: str) -> str:
        """URI that the key has, whether it exists or not."""
        return path_to_uri(self.path_of(key))

    def put_bytes(self, key: str, data: bytes) -> Output:
        """Write in one step, over whatever was there."""
        path = self.path_of(key)
        write_atomically(path, data)
        return self._output(path)

    def put_json(self, key: str, value: Any) -> Output:
        """Write as canonical JSON; NaN and infinity are refused with their path."""
        return self.put_bytes(key, canonical_json(value))

    def put_file(self, key: str, path: Path) -> Output:
        """Copy a local file in one step."""
        target = self.path_of(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(target)
        try:
            shutil.copyfile(path, beside)
            _sync_file(beside)
            beside.replace(target)
        except FileNotFoundError as error:
            raise BadInputError(f"there is no file {path} to store as {key}", file=str(path)) from error
        finally:
            beside.unlink(missing_ok=True)
        fsync_folder(target.parent)
        return self._output(target)

    def put_folder(self, key: str, path: Path) -> Output:
        """Copy a local folder in one step. Raises BadInputError where the key exists already."""
        target = self.path_of(key)
        if not path.is_dir():
            raise BadInputError(f"there is no folder {path} to store as {key}", file=str(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(target)
        try:
            shutil.copytree(path, beside)
            for file in beside.rglob("*"):
                if file.is_file():
                    _sync_file(file)
            rename_folder(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return self._output(target)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless the key exists. A hard link decides the race, so readers never see half the data."""
        path = self.path_of(key)
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        try:
            _write_durably(beside, data)
            os.link(beside, path)
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)
        fsync_folder(path.parent)
        return True

    def get_bytes(self, key: str) -> bytes:
        """Read a file."""
        try:
            return self.path_of(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError) as error:
            raise BadInputError(f"there is no artifact {key} in {self.uri}", file=self.uri_of(key)) from error

    def get_json(self, key: str) -> Any:
        """Read a JSON file."""
        try:
            return json.loads(self.get_bytes(key))
        except ValueError as error:
            raise BadInputError(f"{self.uri_of(key)} is not JSON: {error}", file=self.uri_of(key)) from error

    def get(self, key: str) -> Path:
        """The artifact's own path; nothing is copied."""
        path = self.path_of(key)
        if not path.exists():
            raise BadInputError(f"there is no artifact {key} in {self.uri}", file=self.uri_of(key))
        return path

    def exists(self, key: str) -> bool:
        """Whether the key names a file or a folder."""
        return self.path_of(key).exists()

    def list(self, prefix: str = "") -> Keys:
        """Keys of all files under a folder, sorted; what is still being written is left out."""
        folder = self.path_of(prefix) if prefix else self.root
        found = []
        for file in folder.rglob("*") if folder.is_dir() else ():
            key = file.relative_to(self.root)
            if file.is_file() and not any(part.startswith(_BESIDE) for part in key.parts):
                found.append(key.as_posix())
        return sorted(found)

    def sha256(self, key: str) -> str:
        """Digest of a file's bytes or of a folder's."""
        path = self.get(key)
        return (digest_folder(path) if path.is_dir() else digest_file(path))[0]

    def delete(self, key: str) -> None:
        """Remove a file or a folder; a folder is renamed away first, so readers never see half of it."""
        path = self.path_of(key)
        if path.is_dir():
            beside = _beside(path)
            with contextlib.suppress(FileNotFoundError):
                path.rename(beside)
            shutil.rmtree(beside, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _output(self, path: Path) -> Output:
        digest, size = digest_folder(path) if path.is_dir() else digest_file(path)
        return Output(path_to_uri(path), digest, size)


def rename_folder(source: Path, target: Path) -> None:
    """Give a complete folder its name. Raises BadInputError where the name is taken."""
    try:
        source.rename(target)
    except OSError as error:
        if target.exists():
            raise BadInputError(
                f"{target} exists already; choose another name or remove it", file=str(target)
            ) from error
        raise
    fsync_folder(target.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f"{_BESIDE}{uuid.uuid4().hex}")


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
