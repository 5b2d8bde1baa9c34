"""A merge recipe: the ecosystem's merge configuration (YAML), read strictly.

It differs from other readers on purpose: unknown keys and parameters are errors that name the nearest valid
one, and unsupported features are refused in one sentence instead of being ignored. Reading needs no torch and
touches no model; ``engines.merge.plan.plan`` checks a recipe against its models.

A parameter to search (``{search: [lo, hi], start: x}``) may stand where a parameter's number does: see
``search_parameters`` and ``substitute``; ``parse_recipe`` itself refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from engines.merge.likeness import FIELDS
from engines.merge.methods import METHODS, NOT_YET, Base, Kind, Method, Parameter, Scope
from engines.merge.numbers import as_number, as_truth, as_whole, no_number
from engines.merge.recipe.data import InputModel, Parameters, Recipe, Slice, Source
from engines.merge.recipe.references import ModelRef, parse_reference
from engines.merge.recipe.search import SearchParameter, search_parameters, start_values, substitute
from engines.merge.recipe.settings import Scalar, parse_setting
from engines.merge.recipe.text import load_recipe
from engines.merge.recipe.wording import check_keys, join, unknown, unknown_value, wrong

__all__ = [
    "InputModel",
    "ModelRef",
    "Parameters",
    "Recipe",
    "SearchParameter",
    "Slice",
    "Source",
    "load_recipe",
    "parse_recipe",
    "search_parameters",
    "start_values",
    "substitute",
]

DTYPES = ("float16", "bfloat16", "float32", "float64")
TOP_KEYS = (
    "merge_method",
    "allow_mismatch",
    "models",
    "slices",
    "modules",
    "base_model",
    "parameters",
    "dtype",
    "out_dtype",
    "tokenizer_source",
    "tokenizer",
    "chat_template",
)


def parse_recipe(recipe: Mapping[str, Any] | str, *, file: str | None = None) -> Recipe:
    """Read and check a recipe.

    ``recipe`` as for ``load_recipe``. Raises BadInputError with the path of the fault.
    """
    data, found = load_recipe(recipe)
    return _Parser(file or found).recipe(data)


class _Parser:
    def __init__(self, file: str | None) -> None:
        self.file = file
        self.method: Method = METHODS["linear"]

    def recipe(self, data: Mapping[str, Any]) -> Recipe:
        check_keys(data, TOP_KEYS, "", self.file)
        self.method = self._method(data)
        self._refuse_unsupported(data)
        models, slices = data.get("models"), data.get("slices")
        if (models is None) == (slices is None):
            raise wrong("models", "give exactly one of 'models' and 'slices'", self.file)
        base = data.get("base_model")
        recipe = Recipe(
            merge_method=self.method.name,
            models=tuple(self._model(entry, where) for entry, where in self._list(models, "models")),
            slices=tuple(self._slice(entry, where) for entry, where in self._list(slices, "slices")),
            base_model=None if base is None else parse_reference(base, "base_model", self.file),
            parameters=self._parameters(data.get("parameters"), "parameters", per_input=False),
            dtype=self._dtype(data, "dtype"),
            out_dtype=self._dtype(data, "out_dtype"),
            tokenizer_source=self._tokenizer_source(data),
            chat_template=data.get("chat_template"),
            allow_mismatch=self._allowed(data.get("allow_mismatch")),
            file=self.file,
        )
        self._check_inputs(recipe)
        return recipe

    def _method(self, data: Mapping[str, Any]) -> Method:
        name = data.get("merge_method")
        if name is None:
            raise wrong("merge_method", f"is missing; one of {', '.join(sorted(METHODS))}", self.file)
        if isinstance(name, str) and name in NOT_YET:
            here = ", ".join(sorted(METHODS))
            message = f"`{name}` is a mergekit method that EMEP does not have yet; it has {here}"
            raise wrong("merge_method", message, self.file)
        if not isinstance(name, str) or name not in METHODS:
            raise unknown_value("merge method", name, METHODS, "merge_method", self.file)
        return METHODS[name]

    def _refuse_unsupported(self, data: Mapping[str, Any]) -> None:
        if data.get("modules") is not None:
            raise wrong("modules", "recipes by module are not supported yet; use models or slices", self.file)
        if data.get("tokenizer") is not None:
            raise wrong("tokenizer", "is not supported yet; use tokenizer_source: base or a model", self.file)
        if data.get("chat_template") is not None:
            raise wrong("chat_template", "is not supported yet; the donor's template is copied", self.file)

    def _allowed(self, value: Any) -> tuple[str, ...]:
        names = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(names, list | tuple):
            raise wrong("allow_mismatch", f"{value!r} must be a list of a config's fields", self.file)
        for index, name in enumerate(names):
            if name not in FIELDS:
                raise unknown_value("field of a config", name, FIELDS, f"allow_mismatch[{index}]", self.file)
        return tuple(dict.fromkeys(names))

    def _list(self, value: Any, where: str) -> list[tuple[Any, str]]:
        if value is None:
            return []
        if not isinstance(value, list | tuple) or not value:
            raise wrong(where, "must be a list with at least one entry", self.file)
        return [(entry, join(where, index)) for index, entry in enumerate(value)]

    def _mapping(self, value: Any, where: str, keys: tuple[str, ...], required: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(where, f"{value!r} must be a mapping with '{required}'", self.file)
        check_keys(value, keys, where, self.file)
        if value.get(required) is None:
            raise wrong(join(where, required), "is missing", self.file)
        return value

    def _model(self, value: Any, where: str) -> InputModel:
        data = self._mapping(value, where, ("model", "parameters"), "model")
        return InputModel(
            parse_reference(data["model"], join(where, "model"), self.file),
            self._parameters(data.get("parameters"), join(where, "parameters"), per_input=True),
        )

    def _slice(self, value: Any, where: str) -> Slice:
        keys = ("sources", "base_model", "parameters", "residual_weight")
        data = self._mapping(value, where, keys, "sources")
        sources = tuple(
            self._source(entry, place) for entry, place in self._list(data["sources"], join(where, "sources"))
        )
        lengths = {source.layer_range[1] - source.layer_range[0] for source in sources}
        if len(lengths) > 1:
            raise wrong(
                join(where, "sources"),
                f"layer ranges must be equally long, found {sorted(lengths)}",
                self.file,
            )
        base = data.get("base_model")
        return Slice(
            sources,
            None if base is None else parse_reference(base, join(where, "base_model"), self.file),
            self._parameters(data.get("parameters"), join(where, "parameters"), per_input=False),
        )

    def _source(self, value: Any, where: str) -> Source:
        data = self._mapping(value, where, ("model", "layer_range", "parameters"), "model")
        layers, place = data.get("layer_range"), join(where, "layer_range")
        numbers = [as_whole(n) for n in layers] if isinstance(layers, list | tuple) else []
        if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            raise wrong(place, f"{layers!r} must be two whole numbers [start, end), end excluded", self.file)
        start, end = numbers[0], numbers[1]
        if not 0 <= start < end:
            raise wrong(
                place, f"[{start}, {end}) has no layers; start at 0 or later and end after it", self.file
            )
        return Source(
            parse_reference(data["model"], join(where, "model"), self.file),
            (start, end),
            self._parameters(data.get("parameters"), join(where, "parameters"), per_input=True),
        )

    def _parameters(self, value: Any, where: str, *, per_input: bool) -> Parameters:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise wrong(where, f"{value!r} must be a mapping of parameters", self.file)
        settings: Parameters = {}
        for name, given in value.items():
            parameter = self.method.parameter(name)
            if parameter is None:
                what = f"parameter of {self.method.name}"
                raise unknown(what, name, [entry.name for entry in self.method.parameters], where, self.file)
            place = join(where, name)
            if per_input and parameter.scope is Scope.SHARED:
                raise wrong(
                    place, f"{name} is one per tensor: put it under the recipe's parameters", self.file
                )
            if given is None:
                continue
            read = parse_setting(given, place, self.file)
            settings[name] = read.map(partial(self._value, parameter, place))
        return settings

    def _value(self, parameter: Parameter, where: str, value: Scalar) -> Scalar:
        """One value of a parameter, as the kind that the parameter is, within its bounds."""
        if parameter.kind is Kind.BOOLEAN:
            truth = as_truth(value)
            if truth is None:
                raise wrong(where, f"{value!r} must be true or false", self.file)
            return truth
        number = as_number(value)
        if number is None:
            raise wrong(where, no_number(value), self.file)
        if not math.isfinite(number):
            raise wrong(where, f"{value} is not a finite number", self.file)
        if fault := parameter.fault_of(number):
            raise wrong(where, f"{number} {fault}", self.file)
        return number

    def _dtype(self, data: Mapping[str, Any], key: str) -> str | None:
        value = data.get(key)
        if value is None:
            return None
        name = str(value).removeprefix("torch.")
        if name == "int64":
            raise wrong(
                key, f"int64 would cut weights to whole numbers; one of {', '.join(DTYPES)}", self.file
            )
        if name not in DTYPES:
            raise unknown_value("type", name, DTYPES, key, self.file)
        return name

    def _tokenizer_source(self, data: Mapping[str, Any]) -> str | ModelRef | None:
        value = data.get("tokenizer_source")
        if value is None or value == "base":
            return value
        if value == "union":
            message = "'union' is not supported yet; use base or a model, with equal vocabularies"
            raise wrong("tokenizer_source", message, self.file)
        return parse_reference(value, "tokenizer_source", self.file)

    def _check_inputs(self, recipe: Recipe) -> None:
        if recipe.tokenizer_source == "base" and recipe.base_model is None:
            raise wrong("tokenizer_source", "'base' needs base_model", self.file)
        groups: list[tuple[str, list[ModelRef], ModelRef | None]] = [
            (
                join("slices", i),
                [source.model for source in part.sources],
                part.base_model or recipe.base_model,
            )
            for i, part in enumerate(recipe.slices)
        ] or [("models", [entry.model for entry in recipe.models], recipe.base_model)]
        for where, models, base in groups:
            self._check_group(where, models, base)

    def _check_group(self, where: str, models: list[ModelRef], base: ModelRef | None) -> None:
        method = self.method
        if method.base is Base.REQUIRED:
            if base is None:
                raise wrong("base_model", f"{method.name} needs a base_model", self.file)
            if models.count(base) > 1:
                raise wrong(where, f"lists the base model {base} twice", self.file)
            count = len([model for model in models if model != base]) + method.base_counts
        else:
            count = len(models)
        least, most = method.inputs
        if count < least or (most is not None and count > most):
            wanted = (
                f"{least}" if most == least else f"at least {least}" if most is None else f"{least}-{most}"
            )
            kind = (
                " (with the base)"
                if method.base_counts
                else " beside the base"
                if base_beside(method)
                else ""
            )
            raise wrong(where, f"{method.name} takes {wanted} model(s){kind}, found {count}", self.file)


def base_beside(method: Method) -> bool:
    """Whether a method's base is not one of its counted inputs."""
    return method.base is Base.REQUIRED and not method.base_counts
