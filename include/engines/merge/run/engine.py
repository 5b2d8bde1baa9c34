"""MergeEngine: carries out a plan tensor by tensor and chunk by chunk, and resumes at a tensor."""

# ruff: noqa: TID253 - computes with torch; loaded only to merge
from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engines.artifacts import combine_digests, path_to_uri, uri_to_path
from engines.artifacts.target import disk_full
from engines.checkpoint import CheckpointStore, checkpoint_seconds, spec_digest
from engines.contract import BadInputError, Context, EngineError, Outcome, Output, Preempted
from engines.merge.plan.digests import BackgroundDigests
from engines.merge.plan.plan import make_plan, open_models
from engines.merge.plan.planned import MergePlan, PlannedTensor
from engines.merge.recipe.parse import parse_recipe
from engines.merge.recipe.wording import check_keys, wrong
from engines.merge.run.output import MANIFEST, OutputFolder, check_name, hidden_checkpoints
from engines.merge.run.same_work import adopt_output, fingerprint, versions
from engines.merge.run.sources import TensorAccess, make_job, to_stored
from engines.tensor.engine import TensorEngine
from engines.tensor.reader import TensorReader
from engines.tensor.writer import SHARD_BYTES, ShardedWriter, TensorSpec

CHECKPOINT_SECONDS = 10.0
"""Between checkpoints; ``EMEP_CHECKPOINT_SECONDS`` overrides."""


@dataclass(frozen=True)
class MergeInput:
    """The merge engine's own fields of a SPEC."""

    recipe: Mapping[str, Any] | str
    output_name: str = "model"
    force: bool = False
    """Replace an output that exists."""
    strict: bool = False
    """Refuse inputs with tensors that the donor lacks."""
    allow_nonfinite: bool = False
    """Merge inputs that hold NaN or infinity."""
    shard_bytes: int = SHARD_BYTES

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> MergeInput:
        """Check the fields. Raises BadInputError with the field's path."""
        check_keys(data, cls.__dataclass_fields__, "input", None)
        if not isinstance(data.get("recipe"), Mapping | str):
            raise wrong("input.recipe", "must be a mapping, YAML text, or the path or URI of a recipe")
        name = data.get("output_name", "model")
        if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name or "\0" in name:
            raise wrong("input.output_name", f"{name!r} must be a plain folder name")
        check_name(name, "input.output_name")
        for key in ("force", "strict", "allow_nonfinite"):
            if not isinstance(data.get(key, False), bool):
                raise wrong(f"input.{key}", f"{data[key]!r} must be true or false")
        size = data.get("shard_bytes", SHARD_BYTES)
        if type(size) is not int or size < 1:
            raise wrong("input.shard_bytes", f"{size!r} must be a whole number of bytes, at least 1")
        return cls(**data)


def run(context: Context) -> Outcome:
    """The engine ``merge``: SPEC in, folder ``output_uri/output_name`` out.

    Raises BadInputError for what can never work, Preempted after a checkpoint when told to stop.
    """
    settings = MergeInput.parse(context.spec.input)
    target = uri_to_path(context.spec.output_uri) / settings.output_name
    return merge_to_folder(context, settings, target, adopt=True)


def merge_to_folder(context: Context, settings: MergeInput, target: Path, *, adopt: bool = False) -> Outcome:
    """Merge into ``target``. With ``adopt`` a complete output of the very same work is the result."""
    recipe = parse_recipe(settings.recipe)
    plan = make_plan(recipe, open_models(recipe), strict=settings.strict)
    digest = spec_digest(replace(context.spec, output_uri=path_to_uri(target)))
    output = OutputFolder(target, digest)
    if adopt and not settings.force and (found := adopt_output(output, plan, context.spec.seed)):
        context.checkpoints.clear()
        return found
    output.check(plan.input_paths(), plan.output_bytes, force=settings.force)
    engine = TensorEngine(context.spec.device, chunked=context.spec.chunked)
    context.checkpoints.claim()
    with output.locked():
        try:
            outcome = _Merge(context, settings, plan, engine, output).run()
        except (Preempted, KeyboardInterrupt):
            raise
        except EngineError as error:
            if error.code not in {"busy", "stale_epoch"}:
                output.discard()
                context.checkpoints.clear()
            raise
        except OSError as error:
            # If the disk is full or gone, remove the half output; a checkpoint could not be trusted either.
            output.discard()
            context.checkpoints.clear()
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise disk_full(target, "the merge filled the disk") from None
            raise EngineError(
                f"{target} cannot be written: {error.strerror or error}", code="storage", file=str(target)
            ) from None
    context.checkpoints.clear()
    return outcome


class _Merge:
    def __init__(
        self,
        context: Context,
        settings: MergeInput,
        plan: MergePlan,
        engine: TensorEngine,
        output: OutputFolder,
    ) -> None:
        self.context, self.settings, self.plan = context, settings, plan
        self.engine, self.output = engine, output
        self.fingerprint = fingerprint(plan)
        self.every = checkpoint_seconds(CHECKPOINT_SECONDS)
        self.saved_at = time.monotonic()
        self.resumed_from: int | None = None

    def run(self) -> Outcome:
        readers = {reference: self.engine.open(layout) for reference, layout in self.plan.models.items()}
        digests = BackgroundDigests(self.plan.models)
        writer = self._writer()
        try:
            self._tensors(writer, readers)
            writer.finish()
            read = sum(reader.bytes_read for reader in readers.values())
            return self._publish(writer, digests.result(), read)
        finally:
            writer.close()
            digests.stop()
            for reader in readers.values():
                reader.close()

    def _writer(self) -> ShardedWriter:
        """A writer that continues after the last checkpoint if possible, else one that starts anew."""
        specs = [TensorSpec(tensor.name, tensor.dtype, tensor.shape) for tensor in self.plan.tensors]
        shard_bytes = self.settings.shard_bytes
        checkpoint = self.context.checkpoints.latest()
        state = checkpoint.state() if checkpoint else None
        if checkpoint and isinstance(state, dict) and state.get("fingerprint") == self.fingerprint:
            try:
                writer = self.engine.create(
                    self.output.partial, specs, shard_bytes=shard_bytes, written=int(state["tensors"])
                )
            except EngineError as error:
                if error.code != "resume":
                    raise
            else:
                self.resumed_from = checkpoint.step
                return writer
        self.output.restart()
        return self.engine.create(self.output.partial, specs, shard_bytes=shard_bytes)

    def _tensors(self, writer: ShardedWriter, readers: Mapping[Any, TensorReader]) -> None:
        merge = self.plan.recipe.method.load()
        total = len(self.plan.tensors)
        access: dict[object, TensorAccess] = dict(readers)
        self.context.progress("tensors", writer.position, total)
        for tensor in self.plan.tensors[writer.position :]:
            if tensor.copied:
                self._copy(tensor, readers[tensor.inputs[0].model], writer)
            else:
                job = make_job(
                    tensor,
                    access,
                    self.plan.cast,
                    seed=self.context.spec.seed,
                    chunk_elements=self.engine.chunk_elements,
                    allow_nonfinite=self.settings.allow_nonfinite,
                )
                for chunk in merge(job):
                    writer.write(to_stored(chunk, tensor))
                    self._stop_if_told(writer)
            writer.end_tensor()
            self.context.progress("tensors", writer.position, total)
            if time.monotonic() - self.saved_at >= self.every:
                self._save(writer)

    def _copy(self, tensor: PlannedTensor, reader: TensorReader, writer: ShardedWriter) -> None:
        info = tensor.inputs[0].info
        for start in range(0, tensor.numel, self.engine.chunk_elements):
            raw = reader.raw(info.name, start, min(start + self.engine.chunk_elements, tensor.numel))
            if info.dtype.floating and not self.settings.allow_nonfinite:
                _check_finite(raw, tensor, start)
            writer.write(raw)
            self._stop_if_told(writer)

    def _stop_if_told(self, writer: ShardedWriter) -> None:
        if self.context.stop_requested():
            self._save(writer)
            raise Preempted(f"after tensor {writer.position} of {len(self.plan.tensors)}")

    def _save(self, writer: ShardedWriter) -> None:
        writer.sync()
        if writer.position:
            state = {"tensors": writer.position, "fingerprint": self.fingerprint}
            self.context.checkpoints.save(
                writer.position, state, random_state={"seed": self.context.spec.seed}
            )
        self.saved_at = time.monotonic()

    def _publish(self, writer: ShardedWriter, inputs: dict[str, dict[str, str]], read: int) -> Outcome:
        plan, output = self.plan, self.output
        digests = dict(writer.digests)
        digests |= output.copy_from(plan.donor, plan.tokenizer)
        for extra in output.partial.glob("*.index.json"):
            digests[extra.name] = hashlib.sha256(extra.read_bytes()).hexdigest()
        config = canonical_config(plan)
        digests["config.json"] = output.write_json("config.json", config)
        manifest = {
            "schema_version": 1,
            "recipe": plan.recipe.canonical(),
            "recipe_sha256": plan.recipe.digest(),
            "seed": self.context.spec.seed,
            "device": self.engine.device.partition(":")[0],
            "donor": str(plan.recipe.base_model or plan.recipe.references()[0]),
            "inputs": inputs,
            "outputs": dict(sorted(digests.items())),
            "warnings": list(plan.warnings),
            "versions": versions(),
        }
        digests[MANIFEST] = output.write_json(MANIFEST, manifest)
        self.context.checkpoints.claim()  # a newer epoch's result stands, not this one
        total = sum(entry.stat().st_size for entry in output.partial.iterdir() if entry.name in digests)
        output.publish(force=self.settings.force)
        return Outcome(
            outputs={"model": Output(path_to_uri(output.target), combine_digests(digests), total)},
            metrics={
                "tensors": len(plan.tensors),
                "parameters": plan.parameters,
                "output_bytes": plan.output_bytes,
                "bytes_read": read,
                "method": plan.recipe.merge_method,
                "warnings": list(plan.warnings),
                "gpu_peak_memory_bytes": self.engine.peak_memory(),
            },
            resumed_from=self.resumed_from,
            input_digests={name: combine_digests(files) for name, files in inputs.items()},
            versions=versions(),
        )


def canonical_config(plan: MergePlan) -> dict[str, Any]:
    """The output's config: the donor's with layers, type and ties as merged, without the donor's own name."""
    config = dict(plan.config)
    config.pop("_name_or_path", None)
    return config


def _check_finite(raw: torch.Tensor, tensor: PlannedTensor, start: int) -> None:
    if bool(torch.isfinite(raw.sum(dtype=torch.float32))) or bool(torch.isfinite(raw).all()):
        return
    only = tensor.inputs[0]
    position = start + int((~torch.isfinite(raw)).nonzero()[0])
    raise BadInputError(
        f"{only.info.file}: tensor {only.info.name} of {only.model} is not finite at element {position}; "
        "repair the model, or allow non-finite inputs explicitly",
        code="nonfinite_input",
        file=str(only.info.file),
        field=only.info.name,
    )


def cli_context(
    spec: Any, target: Path, stop: Callable[[], bool], progress: Callable[[str, int, int], None]
) -> Context:
    """A context for a merge from the command line: checkpoints lie beside the output, hidden."""
    from engines.artifacts import FolderArtifactStore

    folder = hidden_checkpoints(target)
    return Context(
        spec=spec,
        artifacts=FolderArtifactStore(path_to_uri(target.parent)),
        checkpoints=CheckpointStore(path_to_uri(folder), spec_digest(spec)),
        stop_requested=stop,
        progress=progress,
    )
