"""``compatibility_check``: finds errors in seconds on a CPU, before a GPU is spent on them.

It reads recipes, configs, safetensors headers, tokenizers and tasks, but no tensors, and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.artifacts import uri_to_path
from engines.contract import BadInputError, Context, Outcome
from engines.evaluation.prompting import FIELDS as PROMPT_FIELDS
from engines.evaluation.prompting import Prompting
from engines.evaluation.settings import text
from engines.merge.plan.architecture import architecture, layer_count
from engines.merge.plan.digests import digest_headers
from engines.merge.plan.estimate import estimate
from engines.merge.plan.plan import make_plan, open_models
from engines.merge.plan.planned import MergePlan
from engines.merge.plan.vocabulary import vocabulary_file
from engines.merge.ranges import check_ranges
from engines.merge.recipe.parse import load_recipe, parse_recipe, start_values, substitute
from engines.merge.recipe.wording import check_keys, wrong
from engines.tensor.layout import ModelLayout, read_layout

_FIELDS = ("recipe", "models", "tasks", "report_tasks", "baseline", *PROMPT_FIELDS, "strict", "expectations")


@dataclass(frozen=True)
class _Input:
    """The engine's own fields of a SPEC."""

    recipe: Mapping[str, Any] | str | None
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    """What a search scores on, or what is evaluated."""
    report_tasks: tuple[str, ...]
    """What the result is reported on; shares no item with ``tasks``."""
    baseline: str | None
    """Results that an evaluation on the report's tasks (else on ``tasks``) is to be compared with."""
    prompting: Prompting
    strict: bool
    expectations: bool
    """Whether data sets are held against expectations too (loads great_expectations: 10 s of CPU)."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> _Input:
        check_keys(data, _FIELDS, "input", None)
        recipe = data.get("recipe")
        if recipe is not None and not isinstance(recipe, Mapping | str):
            raise wrong("input.recipe", "must be a mapping, YAML text, or the path or URI of a recipe")
        for key in ("strict", "expectations"):
            if not isinstance(data.get(key, False), bool):
                raise wrong(f"input.{key}", f"{data[key]!r} must be true or false")
        found = cls(
            recipe,
            _texts(data, "models"),
            _texts(data, "tasks"),
            _texts(data, "report_tasks"),
            text(data, "baseline") if data.get("baseline") is not None else None,
            Prompting.of(data),
            data.get("strict", False),
            data.get("expectations", False),
        )
        if not (found.recipe or found.models or found.tasks or found.report_tasks):
            raise wrong("input", "gives nothing to check; give recipe, models or tasks")
        return found


def run(context: Context) -> Outcome:
    """The engine ``compatibility_check``.

    Raises BadInputError with one sentence that names file and field.
    """
    given = _Input.parse(context.spec.input)
    metrics: dict[str, Any] = {"warnings": []}
    digests: dict[str, str] = {}
    if given.recipe is not None:
        plan, searched = check_recipe(given.recipe, strict=given.strict)
        memory, seconds = estimate(plan, context.spec.device, chunked=context.spec.chunked)
        metrics |= {
            "method": plan.recipe.merge_method,
            "parameters": plan.parameters,
            "output_bytes": plan.output_bytes,
            "tensors": len(plan.tensors),
            "search_parameters": searched,
            "recipe_sha256": plan.recipe.digest() if not searched else None,
            "estimate": {"memory_bytes": int(memory), "seconds": round(seconds, 1)},
        }
        metrics["warnings"] += plan.warnings
        digests |= {str(reference): digest_headers(layout) for reference, layout in plan.models.items()}
    if given.models:
        layouts = {name: read_layout(uri_to_path(name)) for name in given.models}
        metrics["models"] = {name: _describe(layout) for name, layout in layouts.items()}
        metrics["warnings"] += [warning for layout in layouts.values() for warning in _doubts(layout)]
        digests |= {name: digest_headers(layout) for name, layout in layouts.items()}
    if given.tasks or given.report_tasks:
        _check_evaluation(given)
        metrics["tasks"], task_digests, doubts = _check_tasks(given)
        metrics["warnings"] += doubts
        digests |= task_digests
    return Outcome(metrics=metrics, input_digests=digests)


def check_recipe(
    recipe: Mapping[str, Any] | str, *, strict: bool = False, file: str | None = None
) -> tuple[MergePlan, int]:
    """Plan a recipe, with the parameters to search at their start; also how many those are.

    Every range is tried against the method, so a search never meets a value that it refuses.
    """
    data, found = load_recipe(recipe)
    file = file or found
    searched = check_ranges(data, file)
    parsed = parse_recipe(substitute(data, start_values(data)), file=file)
    return make_plan(parsed, open_models(parsed), strict=strict), len(searched)


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A text, a list of texts, or a mapping of names to texts."""
    value = data.get(key)
    if value is None:
        return ()
    entries = (
        list(value.values()) if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
    )
    if not isinstance(entries, list | tuple) or not all(
        isinstance(entry, str) and entry for entry in entries
    ):
        raise wrong(f"input.{key}", "must be a list of paths or URIs, or a mapping of names to them")
    return tuple(entries)


def _describe(layout: ModelLayout) -> dict[str, Any]:
    return {
        "architecture": architecture(layout.config),
        "parameters": layout.parameters,
        "bytes": layout.nbytes,
        "layers": layer_count(layout.config),
    }


def _doubts(layout: ModelLayout) -> list[str]:
    found = list(layout.notes)
    if vocabulary_file(layout.folder) is None:
        found.append(f"{layout.folder} has no tokenizer file; it can be merged, but not evaluated")
    return found


def _check_evaluation(given: _Input) -> None:
    """Refuse what an evaluation would refuse: prompts that its tasks cannot have, an unsuitable baseline."""
    from engines.evaluation.compare import check_baseline, kinds, load_results
    from engines.evaluation.tasks import load_tasks

    tasks = load_tasks(given.report_tasks or given.tasks)
    given.prompting.check(tasks)
    if given.baseline is not None:
        baseline = load_results(given.baseline)
        check_baseline(baseline, kinds(tasks), given.prompting.num_fewshot, chat=given.prompting.chat)


def _check_tasks(given: _Input) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    from engines.evaluation.tasks import load_tasks, shared_items

    tasks = load_tasks(given.tasks) if given.tasks else []
    report = load_tasks(given.report_tasks) if given.report_tasks else []
    shared = shared_items(tasks, report)
    if shared:
        file = str(uri_to_path(report[0].uri))
        raise BadInputError(
            f"input.report_tasks: {len(shared)} item(s) are in the search tasks too, first {shared[0]!r}; "
            "scores on items that the search has used are too good; split the items",
            code="shared_items",
            file=file,
            field="report_tasks",
        )
    doubts: list[str] = []
    if given.expectations:
        from engines.merge.expectations import unmet

        for task in (*tasks, *report):
            doubts += unmet(task)
    described = {task.name: {"items": len(task.items), "kind": task.kind} for task in (*tasks, *report)}
    return described, {task.uri: task.digest for task in (*tasks, *report)}, doubts
