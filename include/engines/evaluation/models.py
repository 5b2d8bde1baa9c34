"""Identifies a model by its folder's content, whatever its path."""

from __future__ import annotations

from pathlib import Path

from engines.artifacts import combine_digests, digest_file
from engines.merge.plan.digests import digest_model
from engines.tensor.layout import read_layout

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json")


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 over the files that decide how text becomes tokens."""
    return combine_digests(
        {name: digest_file(folder / name)[0] for name in _TOKENIZER_FILES if (folder / name).is_file()}
    )


def model_digest(folder: Path) -> str:
    """SHA-256 over config, weights and tokenizer: equal digests give equal scores.

    Raises BadInputError where the folder holds no readable checkpoint.
    """
    return combine_digests(
        {"model": digest_model(read_layout(folder)), "tokenizer": tokenizer_digest(folder)}
    )
