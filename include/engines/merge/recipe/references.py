"""Model references of a recipe: ``PATH[@REVISION][+LORA[@REVISION]]``, or the same as a mapping."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifacts import check_path, uri_to_path
from engines.confinement import check_read
from engines.contract import BadInputError
from engines.merge.recipe.wording import check_keys, join, wrong


@dataclass(frozen=True)
class ModelRef:
    """A model as the recipe names it. Two references are one model when path, revision and LoRA are equal."""

    path: str
    revision: str | None = None
    lora: str | None = None

    def __str__(self) -> str:
        text = f"{self.path}@{self.revision}" if self.revision else self.path
        return f"{text}+{self.lora}" if self.lora else text

    def folder(self, base: Path | None = None, file: str | None = None) -> Path:
        """The model's local folder; relative paths start at ``base`` (default: the working directory).

        Raises BadInputError where there is no such folder, and for revisions and LoRA adapters, which are
        not supported yet.
        """
        literal = _locate(str(self), base)
        if literal is not None:
            return literal
        found = _locate(self.path, base)
        if self.lora is not None:
            raise wrong(str(self), "LoRA adapters as inputs are not supported yet; merge them in first", file)
        if found is None:
            hint = "give a folder with config.json and *.safetensors, or a file:/// URI"
            raise BadInputError(
                f"{file or 'recipe'}: there is no model folder {self.path}; {hint}",
                file=self.path,
                field="model",
            )
        if self.revision is not None:
            raise wrong(str(self), "a revision of a local folder is not supported yet; name the folder", file)
        return found


def _locate(text: str, base: Path | None) -> Path | None:
    path = uri_to_path(text) if "://" in text else check_path(text)
    # "~name" of a user unknown on this machine is a folder's name like any other.
    with contextlib.suppress(RuntimeError):
        path = path.expanduser()
    if base is not None and not path.is_absolute():
        path = base / path
    check_read(path.absolute(), "model")
    return path.absolute() if path.is_dir() else None


def parse_reference(value: Any, where: str, file: str | None = None) -> ModelRef:
    """Read a REF. Raises BadInputError with the path of what is wrong."""
    if isinstance(value, Mapping):
        return _from_mapping(value, where, file)
    if not isinstance(value, str) or not value.strip():
        raise wrong(where, f"{value!r} is no model reference; give a path such as models/base", file)
    text, _, lora = value.strip().partition("+")
    path, revision = _split_revision(text)
    return ModelRef(path, revision, lora or None)


def _split_revision(text: str) -> tuple[str, str | None]:
    path, at, revision = text.rpartition("@")
    if at and path and "/" not in revision:
        return path, revision
    return text, None


def _from_mapping(value: Mapping[str, Any], where: str, file: str | None) -> ModelRef:
    check_keys(value, ("model", "lora", "override_architecture"), where, file)
    if value.get("override_architecture") is not None:
        raise wrong(
            join(where, "override_architecture"), "overriding an architecture is not supported yet", file
        )
    if "model" not in value:
        raise wrong(where, "needs 'model', as in {model: {path: models/base}}", file)
    path, revision = _path_of(value["model"], join(where, "model"), file)
    lora = value.get("lora")
    if lora is None:
        return ModelRef(path, revision)
    lora_path, lora_revision = _path_of(lora, join(where, "lora"), file)
    return ModelRef(path, revision, f"{lora_path}@{lora_revision}" if lora_revision else lora_path)


def _path_of(value: Any, where: str, file: str | None) -> tuple[str, str | None]:
    if isinstance(value, str):
        return _split_revision(value)
    if not isinstance(value, Mapping):
        raise wrong(where, f"{value!r} is no model; give a path or {{path: ..}}", file)
    check_keys(value, ("path", "revision"), where, file)
    if not isinstance(value.get("path"), str):
        raise wrong(join(where, "path"), "needs the path of a model folder", file)
    return value["path"], value.get("revision")
