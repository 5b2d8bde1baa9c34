# ruff: noqa: TID253 - reads tensors; imported only by the backends, which are opened inside functions
"""Reading a Hugging Face checkpoint folder: its config and its weights, nothing unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engines.contract import BadInputError
from engines.tensor.layout import read_layout


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint. Raises BadInputError where the folder or the file is not there."""
    file = folder / "config.json"
    if not folder.is_dir():
        raise BadInputError(f"{folder}: there is no such model folder", file=str(folder), field="model")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInputError(
            f"{folder} is no model folder: it has no config.json", file=str(file), field="model"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{file} is not JSON: {error}", file=str(file), field="model") from error
    if not isinstance(config, dict):
        raise BadInputError(f"{file} must be a JSON object", file=str(file), field="model")
    return config


def read_state(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a checkpoint in memory. Raises BadInputError for a missing or broken shard."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = {}
    for file in read_layout(folder).files:
        try:
            state.update(load_file(str(file)))
        except SafetensorError as error:
            raise BadInputError(f"{file} is broken: {error}", file=str(file), field="model") from error
    return state


def check_state(
    state: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Size], optional: frozenset[str]
) -> None:
    """Compare names and shapes. Raises BadInputError that names the first tensor that is wrong.

    ``optional``: names that may be missing (tied) or present without being used.
    """
    for name, shape in wanted.items():
        if name not in state:
            if name in optional:
                continue
            raise BadInputError(f"weights: the tensor {name} is missing", field=name)
        if state[name].shape != shape:
            raise BadInputError(
                f"weights: {name} has shape {list(state[name].shape)}, the config says {list(shape)}",
                field=name,
            )
    for name in state:
        if name not in wanted and name not in optional:
            raise BadInputError(f"weights: the model has no tensor {name}", field=name)
