"""ArtifactStore: results by key under one root URI. Folders and object stores share this interface.

A key is a relative path with forward slashes (``gen/3/ask.json``). What is visible under a key is complete:
writers put beside and rename (folders) or upload in one piece (objects). ``put_if_absent`` is the one
primitive that decides a race: the first writer wins, whatever the others bring.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from engines.contract import BadInputError, Output

_READ_SIZE = 1 << 20

Keys = list[str]
"""Sorted keys; a name of its own because the store's method ``list`` hides the builtin."""


@runtime_checkable
class ArtifactStore(Protocol):
    """Named artifacts under one root."""

    uri: str
    """Root of the store, without a trailing slash."""

    def uri_of(self, key: str) -> str:
        """URI of ``key``, whether it exists or not. Raises BadInputError where the key leaves the root."""
        ...

    def put_bytes(self, key: str, data: bytes) -> Output:
        """Write ``data`` in one step, over whatever was there."""
        ...

    def put_json(self, key: str, value: Any) -> Output:
        """Write as canonical JSON (sorted keys). Raises BadInputError for NaN and what JSON cannot hold."""
        ...

    def put_file(self, key: str, path: Path) -> Output:
        """Copy a local file in one step."""
        ...

    def put_folder(self, key: str, path: Path) -> Output:
        """Copy a local folder in one step; refused where the key exists already."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write ``data`` unless the key exists; True for the one writer whose data is now there."""
        ...

    def get_bytes(self, key: str) -> bytes:
        """Read a file. Raises BadInputError where it does not exist."""
        ...

    def get_json(self, key: str) -> Any:
        """Read a JSON file. Raises BadInputError where it does not exist or does not parse."""
        ...

    def get(self, key: str) -> Path:
        """A local path with the file's or folder's content, to be read only."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the key names a file or a folder."""
        ...

    def list(self, prefix: str = "") -> Keys:
        """Keys of all files under a folder, sorted."""
        ...

    def sha256(self, key: str) -> str:
        """Digest of a file's bytes, or of a folder (see ``digest_folder``)."""
        ...

    def delete(self, key: str) -> None:
        """Remove a file or folder; nothing happens where it does not exist."""
        ...


def canonical_json(value: Any) -> bytes:
    """Bytes that depend on the value alone: sorted keys, no blanks, no NaN or infinity."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        where = non_finite_path(value)
        what = f"{where} is not a finite number" if where else str(error)
        raise BadInputError(f"cannot be written as JSON: {what}", field=where) from error
    return text.encode()


def non_finite_path(value: Any, path: str = "") -> str | None:
    """Path (``a.b[2]``) of the first NaN or infinity inside a JSON-like value, None where there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (path or "value")
    items: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        items = ((f"{path}.{key}" if path else str(key), entry) for key, entry in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"{path}[{index}]", entry) for index, entry in enumerate(value))
    return next((found for name, entry in items if (found := non_finite_path(entry, name))), None)


def digest_file(path: Path) -> tuple[str, int]:
    """SHA-256 (hex) and size in bytes of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while data := file.read(_READ_SIZE):
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size


def combine_digests(files: dict[str, str]) -> str:
    """One digest of a folder from those of its files: SHA-256 over ``<hex>  <name>\\n`` lines sorted by name.

    That is what ``sha256sum`` prints for the sorted names, so a shell can check it without EMEP.
    """
    lines = (f"{files[name]}  {name}\n" for name in sorted(files, key=str.encode))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest_folder(path: Path) -> tuple[str, int]:
    """Digest (``combine_digests``) and total size in bytes of all files under a folder."""
    digests: dict[str, str] = {}
    total = 0
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digests[file.relative_to(path).as_posix()], size = digest_file(file)
            total += size
    return combine_digests(digests), total
