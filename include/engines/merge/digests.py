"""Content digests of models: what a recipe's result depends on, wherever the files lie."""

from __future__ import annotations

from collections.abc import Callable

from engines.artifacts import combine_digests, digest_file
from engines.tensor.layout import ModelLayout


def digest_model(layout: ModelLayout, note: Callable[[int], None] = lambda size: None) -> str:
    """SHA-256 over a model's config and tensor files, by their names (``combine_digests``).

    ``note`` is told the bytes of each file read.
    """
    digests = {}
    for file in (layout.folder / "config.json", *layout.files):
        digests[file.name], size = digest_file(file)
        note(size)
    return combine_digests(digests)
