"""Decides whether two merges are the same work, so that one can resume or reuse the other's output."""

# ruff: noqa: TID253 - the version of torch is part of it; loaded only to merge
from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version

import torch

from engines.artifacts import canonical_json, combine_digests, digest_file, path_to_uri
from engines.contract import Outcome, Output
from engines.merge.plan.digests import BackgroundDigests
from engines.merge.plan.planned import MergePlan
from engines.merge.run.output import MANIFEST, OutputFolder


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    return {"emep": version("emep"), "torch": torch.__version__, "python": platform.python_version()}


def fingerprint(plan: MergePlan) -> str:
    """What a broken merge may be resumed on: the plan and the very files, by size and time of change."""
    files = {}
    for layout in plan.models.values():
        for path in (layout.folder / "config.json", *layout.files):
            status = path.stat()
            files[str(path)] = [status.st_size, status.st_mtime_ns]
    names = [[tensor.name, tensor.dtype.name, list(tensor.shape)] for tensor in plan.tensors]
    value = {"recipe": plan.recipe.canonical(), "files": files, "tensors": names, "torch": torch.__version__}
    return hashlib.sha256(canonical_json(value)).hexdigest()


def adopt_output(output: OutputFolder, plan: MergePlan, seed: int) -> Outcome | None:
    """The Outcome of a complete target that this very work has written before, else None."""
    manifest = output.manifest()
    if manifest is None or manifest.get("seed") != seed:
        return None
    if manifest.get("recipe_sha256") != plan.recipe.digest():
        return None
    inputs = BackgroundDigests(plan.models).result()
    if manifest.get("inputs") != inputs or manifest.get("versions") != versions():
        return None
    held = {entry.name: digest_file(entry) for entry in output.target.iterdir() if entry.is_file()}
    digests = {name: digest for name, (digest, _) in held.items()}
    if {name: digest for name, digest in digests.items() if name != MANIFEST} != manifest.get("outputs"):
        return None
    size = sum(length for _, length in held.values())
    return Outcome(
        outputs={"model": Output(path_to_uri(output.target), combine_digests(digests), size)},
        metrics={
            "tensors": len(plan.tensors),
            "parameters": plan.parameters,
            "output_bytes": plan.output_bytes,
            "method": plan.recipe.merge_method,
            "warnings": list(plan.warnings),
            "adopted": True,
        },
        input_digests={name: combine_digests(files) for name, files in inputs.items()},
        versions=versions(),
    )
