"""From a recipe and its models' headers to a plan: every output tensor with its inputs, parameters and type.

Everything that can be wrong is found here, before any tensor is read. Nothing here imports torch.

Rules that are easy to get wrong, in one place:

* The donor of config, tokenizer and tensor set is ``base_model`` where it is given, else the first model
  listed.
* The output is tied (head = embedding) only where every input is; else each tied input's embedding is its
  head.
* A parameter's value comes from the first of source, slice, recipe that yields one for the tensor, else its
  default.
* Gradients: position index/(n-1) of a layer in its slice (1 in a slice of one layer), 0 for unnumbered
  tensors.
* Stored type: out_dtype, else dtype, else what the inputs' types promote to. ``dtype`` also rounds the
  inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.contract import BadInputError
from engines.merge.likeness import check_alike, check_shared_layers, check_stacks
from engines.merge.methods import Base, Parameter, Scope
from engines.merge.methods.task_vectors import ZERO_WEIGHT
from engines.merge.plan.architecture import ModelView, architecture, belongs_to_first, split_name
from engines.merge.plan.groups import Group, layer_groups
from engines.merge.plan.output_config import output_config
from engines.merge.plan.planned import MergePlan, PlannedInput, PlannedTensor
from engines.merge.plan.vocabulary import check_vocabularies
from engines.merge.quantisation import check_config_is_plain, check_tensors_are_plain
from engines.merge.recipe.data import Parameters, Recipe
from engines.merge.recipe.references import ModelRef
from engines.merge.recipe.wording import wrong
from engines.tensor.dtypes import BY_NAME, promote
from engines.tensor.layout import ModelLayout, TensorInfo, read_layout, read_model_config


def open_models(recipe: Recipe, base_folder: Path | None = None) -> dict[ModelRef, ModelLayout]:
    """Layouts of all models of a recipe; relative paths start at ``base_folder``.

    Raises BadInputError, for quantised models too: nothing of them can be merged.
    """
    found = {}
    for reference in recipe.references():
        folder = reference.folder(base_folder, recipe.file)
        check_config_is_plain(folder, read_model_config(folder))
        found[reference] = read_layout(folder)
        check_tensors_are_plain(found[reference])
    return found


def make_plan(recipe: Recipe, models: Mapping[ModelRef, ModelLayout], *, strict: bool = False) -> MergePlan:
    """Check a recipe against its models and plan every tensor.

    ``strict`` refuses inputs with tensors that the donor lacks; else they are left out with a warning. Raises
    BadInputError naming files, tensor and what would help.
    """
    return _Planner(recipe, models, strict).plan()


class _Planner:
    def __init__(self, recipe: Recipe, models: Mapping[ModelRef, ModelLayout], strict: bool) -> None:
        self.recipe, self.models, self.strict = recipe, models, strict
        self.views = {reference: ModelView(layout) for reference, layout in models.items()}
        self.donor_reference = recipe.base_model or recipe.references()[0]
        self.donor = self.views[self.donor_reference]
        self.groups = layer_groups(recipe, self.views)
        self.cast = BY_NAME[recipe.dtype] if recipe.dtype else None
        self.warnings: list[str] = []

    def plan(self) -> MergePlan:
        self._check_architectures()
        tokenizer = self._tokenizer()
        tied = all(view.tied for view in self.views.values())
        tensors = tuple(self._tensors(tied))
        self._report_left_out(tensors)
        return MergePlan(
            recipe=self.recipe,
            models=self.models,
            donor=self.donor.layout,
            tokenizer=tokenizer,
            config=output_config(
                self.recipe, self.models, self.donor.layout, self.groups, tensors, tied=tied
            ),
            tensors=tensors,
            cast=self.cast,
            warnings=tuple(self.warnings),
        )

    # Output names, in the donor's order.

    def _tensors(self, tied: bool) -> Iterator[PlannedTensor]:
        names = list(self.donor.names)
        if not tied and self.donor.tied:
            names.append(next(head for view in self.views.values() if (head := view.head)))
        if self.recipe.models:
            group = self.groups[0]
            for name in names:
                part = split_name(name)
                count = self.donor.stacks.get(part.stack) if part else None
                position = 0.0 if part is None or count is None else _position(part.index, count)
                yield self._tensor(name, group, [name] * len(group.sources), name, position)
            return
        yield from self._sliced(names)

    def _sliced(self, names: list[str]) -> Iterator[PlannedTensor]:
        stack, _ = self.donor.layer_stack()
        unnumbered = [name for name in names if not _in_stack(name, stack)]
        for name in (name for name in unnumbered if belongs_to_first(name)):
            yield self._tensor(name, self.groups[0], [name] * len(self.groups[0].sources), name, 0.0)
        done = 0
        for group in self.groups:
            assert group.length is not None  # noqa: S101 - slices have a length
            for layer in range(group.length):
                yield from self._layer(group, layer, done + layer)
            done += group.length
        last = self.groups[-1]
        for name in (name for name in unnumbered if not belongs_to_first(name)):
            yield self._tensor(name, last, [name] * len(last.sources), name, 0.0)

    def _layer(self, group: Group, layer: int, output: int) -> Iterator[PlannedTensor]:
        assert group.length is not None  # noqa: S101
        model, _, start = group.sources[0]
        stack, _ = self.views[model].layer_stack()
        for name in self.views[model].names:
            part = split_name(name)
            if part is None or part.stack != stack or part.index != start + layer:
                continue
            inputs = [part.at(first + layer) for _, _, first in group.sources]
            position = _position(layer, group.length)
            yield self._tensor(part.at(output), group, inputs, part.at(group.base_start + layer), position)

    # One tensor.

    def _tensor(
        self, name: str, group: Group, inputs: Sequence[str], base_name: str, position: float
    ) -> PlannedTensor:
        method = self.recipe.method
        base: PlannedInput | None = None
        if method.base is Base.REQUIRED and group.base is not None:
            base = PlannedInput(group.base, self._find(group.base, base_name))
        planned = []
        for index, ((model, parameters, _), source) in enumerate(zip(group.sources, inputs, strict=True)):
            if base is not None and model == group.base:
                continue
            scopes = (parameters, *group.scopes)
            where = (
                f"{group.where}[{index}]" if group.where == "models" else f"{group.where}.sources[{index}]"
            )
            values = {
                parameter.name: self._value(parameter, scopes, source, position, where)
                for parameter in method.parameters
                if parameter.scope is not Scope.SHARED
            }
            planned.append(PlannedInput(model, self._find(model, source), values))
        shared = {
            parameter.name: self._value(parameter, group.scopes, name, position, "")
            for parameter in method.parameters
            if parameter.scope is Scope.SHARED
        }
        self._check_weights(name, planned, shared, group.where)
        tensor = PlannedTensor(name, planned[0].info.shape, BY_NAME["float32"], tuple(planned), base, shared)
        self._check_shapes(tensor)
        return self._typed(tensor)

    def _find(self, model: ModelRef, name: str) -> TensorInfo:
        found = self.views[model].find(name)
        if found is None:
            folder = self.models[model].folder
            donor = self.donor.layout.folder
            raise BadInputError(
                f"{folder} lacks tensor {name}, which {donor} has; the models must be of one architecture",
                code="missing_tensor",
                file=str(folder),
                field=name,
            )
        return found

    def _value(
        self, parameter: Parameter, scopes: Sequence[Parameters], name: str, position: float, where: str
    ) -> Any:
        for scope in scopes:
            setting = scope.get(parameter.name)
            value = None if setting is None else setting.value(name, position)
            if value is not None:
                return bool(value) if parameter.kind.value == "boolean" else value
        if parameter.required:
            place = f"{where}.parameters.{parameter.name}" if where else f"parameters.{parameter.name}"
            raise wrong(
                place, f"is missing for tensor {name}; {self.recipe.merge_method} needs it", self.recipe.file
            )
        return parameter.default

    def _check_weights(
        self, name: str, inputs: Sequence[PlannedInput], shared: Mapping[str, Any], where: str
    ) -> None:
        method = self.recipe.method
        weights = [entry.parameters["weight"] for entry in inputs if "weight" in entry.parameters]
        if not weights or not method.normalised(shared) or abs(sum(weights)) >= ZERO_WEIGHT:
            return
        if not any(weights):
            if method.base is Base.REQUIRED:
                return  # nothing is added to the base: its tensor is the result
            message = f"every weight of tensor {name} is 0; give it to at least one model"
        else:
            message = (
                f"weights {weights} of tensor {name} sum to 0 and cannot be normalised; set normalize: false"
            )
        raise wrong(f"{where}.parameters.weight", message, self.recipe.file)

    def _check_shapes(self, tensor: PlannedTensor) -> None:
        first = tensor.sources[0].info
        for entry in tensor.sources[1:]:
            info = entry.info
            if info.shape != first.shape:
                raise BadInputError(
                    f"tensor {tensor.name} has shape {list(first.shape)} in {first.file} and "
                    f"{list(info.shape)} in {info.file}; the models must have equal shapes",
                    code="shape_mismatch",
                    file=str(info.file),
                    field=tensor.name,
                )
            if info.dtype.floating != first.dtype.floating:
                raise BadInputError(
                    f"tensor {tensor.name} is {first.dtype.name} in {first.file} and {info.dtype.name} in "
                    f"{info.file}; one is no weight",
                    code="dtype_mismatch",
                    file=str(info.file),
                    field=tensor.name,
                )

    def _typed(self, tensor: PlannedTensor) -> PlannedTensor:
        types = [entry.info.dtype for entry in tensor.sources]
        if not types[0].floating:
            donor = next(
                (entry for entry in tensor.sources if entry.model == self.donor_reference), tensor.sources[0]
            )
            self.warnings.append(f"{tensor.name} is {donor.info.dtype.name}: copied from {donor.model}")
            return replace(tensor, dtype=donor.info.dtype, inputs=(donor,), base=None, copied=True)
        stored = self.recipe.out_dtype or self.recipe.dtype
        dtype = BY_NAME[stored] if stored else promote(types)
        only = len(types) == 1 and types[0] == dtype and self.cast in {None, dtype}
        plain = self.recipe.merge_method == "passthrough" and tensor.inputs[0].parameters["scale"] in {
            None,
            1,
        }
        return replace(tensor, dtype=dtype, copied=only and plain)

    # The whole.

    def _check_architectures(self) -> None:
        mine = self.donor.layout
        for view in self.views.values():
            view.check_layers()
            self.warnings += view.layout.notes
        for layout in self.models.values():
            if architecture(layout.config) != architecture(mine.config):
                raise BadInputError(
                    f"{layout.folder} is a {architecture(layout.config)}, {mine.folder} a "
                    f"{architecture(mine.config)}; a merge needs one architecture",
                    code="architecture_mismatch",
                    file=str(layout.folder / "config.json"),
                    field="architectures",
                )
            allowed, same_depth = self.recipe.allow_mismatch, not self.recipe.slices
            self.warnings += check_alike(mine, layout, allowed, same_depth=same_depth)
            if same_depth:
                check_stacks(self.donor, ModelView(layout), allowed)

    def _tokenizer(self) -> ModelLayout:
        folders = [self.donor.layout.folder]
        folders += [layout.folder for layout in self.models.values() if layout.folder not in folders]
        source = self.recipe.tokenizer_source
        if isinstance(source, ModelRef):
            if source not in self.models:
                message = f"{source} is none of the recipe's models: {', '.join(map(str, self.models))}"
                raise wrong("tokenizer_source", message, self.recipe.file)
            chosen = self.models[source]
        else:
            chosen = self.donor.layout
        self.warnings += check_vocabularies(folders, self.recipe.file)
        return chosen

    def _report_left_out(self, tensors: Sequence[PlannedTensor]) -> None:
        if self.recipe.slices:
            return
        used = {tensor.name for tensor in tensors}
        for reference, view in self.views.items():
            extra = sorted(set(view.names) - used)
            if not extra:
                continue
            check_shared_layers(self.donor, view, extra, self.recipe.allow_mismatch)
            listed = ", ".join(extra[:3]) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "")
            message = f"{reference} has {len(extra)} tensor(s) that {self.donor_reference} lacks: {listed}"
            if self.strict:
                raise BadInputError(
                    message, code="extra_tensors", file=str(view.layout.folder), field=extra[0]
                )
            self.warnings.append(f"{message}; left out")


def _position(index: int, count: int) -> float:
    return index / (count - 1) if count > 1 else 1.0


def _in_stack(name: str, stack: str) -> bool:
    part = split_name(name)
    return part is not None and part.stack == stack
