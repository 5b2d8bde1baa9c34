"""Content digests of models, on which a recipe's result depends, wherever the files are."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.artifacts import combine_digests
from engines.tensor.layout import ModelLayout

_PIECE = 1 << 20


def digest_model(layout: ModelLayout) -> str:
    """SHA-256 over a model's config and tensor files, by their names (``combine_digests``)."""
    return combine_digests(file_digests(layout))


def file_digests(layout: ModelLayout, stop: threading.Event | None = None) -> dict[str, str]:
    """SHA-256 of a model's config and tensor files by name; ends early when ``stop`` is set."""
    digests = {}
    for file in (layout.folder / "config.json", *layout.files):
        digests[file.name] = _digest(file, stop)
    return digests


def digest_headers(layout: ModelLayout) -> str:
    """SHA-256 over a model's config and its tensors' names, types and shapes; fast, as no content is read."""
    lines = [f"{info.name} {info.dtype.code} {list(info.shape)}" for info in layout.tensors.values()]
    text = "\n".join([json.dumps(layout.config, sort_keys=True), *sorted(lines)])
    return hashlib.sha256(text.encode()).hexdigest()


class BackgroundDigests:
    """Digests models' files in a thread beside the merge (hashing runs without Python's lock)."""

    def __init__(self, models: Mapping[Any, ModelLayout]) -> None:
        self._models = models
        self._stop = threading.Event()
        self._found: dict[str, dict[str, str]] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="digest", daemon=True)
        self._thread.start()

    def result(self) -> dict[str, dict[str, str]]:
        """Digests by model and file name; waits for them. Raises what went wrong in the thread."""
        self._thread.join()
        if self._error:
            raise self._error
        return self._found

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for reference, layout in self._models.items():
                self._found[str(reference)] = file_digests(layout, self._stop)
        except BaseException as error:
            self._error = error


def _digest(path: Path, stop: threading.Event | None) -> str:
    digest = hashlib.sha256()
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while (count := file.readinto(buffer)) and not (stop and stop.is_set()):
            digest.update(view[:count])
    return digest.hexdigest()
