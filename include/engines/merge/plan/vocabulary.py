"""Compares the vocabularies of model folders without loading a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.artifacts import digest_file
from engines.contract import BadInputError
from engines.tensor.layout import read_json_object

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""Copied byte for byte from the tokenizer's donor."""
_VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")


def vocabulary_file(folder: Path) -> Path | None:
    """The file that says which token has which id, None where the folder has none."""
    return next((folder / name for name in _VOCABULARY_FILES if (folder / name).exists()), None)


def check_vocabularies(folders: Sequence[Path], recipe_file: str | None = None) -> list[str]:
    """Refuse models whose tokens have different ids; returns warnings for folders without a tokenizer.

    Rows of an embedding only mean the same where ids do. Raises BadInputError naming both files and a token.
    """
    warnings: list[str] = []
    known: list[tuple[Path, str]] = []
    for folder in folders:
        file = vocabulary_file(folder)
        if file is None:
            warnings.append(f"{folder} has no tokenizer file; its vocabulary cannot be compared")
        else:
            known.append((file, digest_file(file)[0]))
    if not known:
        return warnings
    first, digest = known[0]
    vocabulary: dict[str, int] | None = None
    for file, other in known[1:]:
        if other == digest:
            continue
        vocabulary = vocabulary or read_vocabulary(first)
        _compare(first, vocabulary, file, read_vocabulary(file), recipe_file)
    return warnings


def read_vocabulary(file: Path) -> dict[str, int]:
    """Token to id. A binary sentencepiece model counts as one token, its digest."""
    if file.suffix == ".txt":
        return {token: index for index, token in enumerate(file.read_text(encoding="utf-8").splitlines())}
    if file.suffix != ".json":
        return {f"digest {digest_file(file)[0]}": 0}
    data = read_json_object(file, "")
    if file.name == "vocab.json":
        return {str(token): int(index) for token, index in data.items()}
    return _from_tokenizer(file, data)


def _from_tokenizer(file: Path, data: dict[str, Any]) -> dict[str, int]:
    try:
        model = data["model"]["vocab"]
        pairs = model.items() if isinstance(model, dict) else ((entry[0], i) for i, entry in enumerate(model))
        vocabulary = {str(token): int(index) for token, index in pairs}
        for token in data.get("added_tokens") or ():
            vocabulary[str(token["content"])] = int(token["id"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInputError(
            f"{file} is no tokenizer file: {error!r}", file=str(file), field="model.vocab"
        ) from error
    return vocabulary


def _compare(
    first: Path, left: dict[str, int], second: Path, right: dict[str, int], recipe_file: str | None
) -> None:
    if left == right:
        return
    differing = sorted(token for token in left.keys() | right.keys() if left.get(token) != right.get(token))
    token = json.dumps(differing[0])
    raise BadInputError(
        f"{recipe_file or 'recipe'}: vocabularies differ in {len(differing)} token(s): {token} is "
        f"{_id(left, differing[0])} in {first} and {_id(right, differing[0])} in {second}; merging by token "
        "is not supported yet, use models with one vocabulary",
        code="vocabulary_mismatch",
        file=str(second),
        field="tokenizer_source",
    )


def _id(vocabulary: dict[str, int], token: str) -> str:
    return str(vocabulary[token]) if token in vocabulary else "missing"
