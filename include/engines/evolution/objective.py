"""Objective: one number, higher is better, from a candidate's metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engines.contract import BadInputError
from engines.merge.numbers import as_finite
from engines.merge.yaml_text import YamlFault, read_yaml

METRICS = {"acc": 1.0, "acc_norm": 1.0, "answer_logprob": 1.0, "bits_per_byte": -1.0}
"""Metric -> sign that makes higher better."""


@dataclass(frozen=True)
class Objective:
    """The weighted mean of a metric over skills."""

    metric: str = "acc"
    weights: Mapping[str, float] = field(default_factory=dict)
    """By skill; where empty, all skills count the same."""

    @classmethod
    def parse(cls, value: Any) -> Objective:
        """Read a metric's name, ``{metric, weights}`` or nothing from an input. Raises BadInputError."""
        if value is None:
            return cls()
        if isinstance(value, str):
            value = _from_text(value)
        if not isinstance(value, Mapping) or set(value) - {"metric", "weights"}:
            raise BadInputError(
                "input.objective: must be a metric's name or {metric: .., weights: {skill: number}}",
                field="input.objective",
            )
        metric, weights = value.get("metric", "acc"), value.get("weights") or {}
        if metric not in METRICS:
            raise BadInputError(
                f"input.objective: unknown metric '{metric}'; known: {', '.join(METRICS)}",
                field="input.objective",
            )
        numbers = isinstance(weights, Mapping) and all(_positive(entry) for entry in weights.values())
        if not numbers:
            raise BadInputError(
                "input.objective.weights: must be numbers above 0 by skill", field="input.objective.weights"
            )
        return cls(metric, {str(skill): as_finite(weight) or 0.0 for skill, weight in weights.items()})

    def check(self, skills: set[str], kinds: set[str]) -> None:
        """Raises BadInputError where tasks cannot give this metric, or lack a weighted skill."""
        needed = "text" if self.metric == "bits_per_byte" else "choice"
        if kinds != {needed}:
            what = "texts" if needed == "text" else "questions with choices"
            raise BadInputError(
                f"input.objective: '{self.metric}' needs tasks of {what} only", field="input.objective"
            )
        missing = sorted(set(self.weights) - skills)
        if missing:
            raise BadInputError(
                f"input.objective.weights: no task has the skill '{missing[0]}'; "
                f"known: {', '.join(sorted(skills))}",
                field="input.objective.weights",
            )

    def score(self, metrics: Mapping[str, Any]) -> float:
        """The score of an evaluation's metrics (those of ``Evaluation.metrics``)."""
        skills = metrics["skills"]
        weights = self.weights or dict.fromkeys(skills, 1.0)
        total = math.fsum(weights.values())
        return (
            METRICS[self.metric] * math.fsum(w * skills[s][self.metric] for s, w in weights.items()) / total
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``parse`` reads it."""
        return {"metric": self.metric, "weights": dict(self.weights)}


def _from_text(text: str) -> Any:
    """A metric's name, or the mapping that a form's or a command's text says."""
    if not text.strip().startswith("{"):
        return {"metric": text.strip()}
    try:
        return read_yaml(text)
    except YamlFault as error:
        raise BadInputError(f"input.objective: not valid YAML: {error}", field="input.objective") from error


def _positive(value: Any) -> bool:
    number = as_finite(value)
    return number is not None and number > 0
