"""The description of a merge method: its name, inputs, parameters and the place of its arithmetic.

Descriptions import no torch, so a recipe is checked in milliseconds. A further method is one module with a
``METHOD`` and a ``merge`` function, and one line in ``engines.merge.methods.METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from engines.merge.methods.job import TensorJob

Merge = Callable[["TensorJob"], Iterator["Tensor"]]


class Scope(str, Enum):
    """How often a parameter is set."""

    SHARED = "shared"
    """Once per output tensor."""
    INPUT = "input"
    """Once per input model."""
    TASK = "task"
    """Once per input model that is not the base."""


class Kind(str, Enum):
    """What a parameter's values are."""

    NUMBER = "number"
    BOOLEAN = "boolean"


class Base(str, Enum):
    """Whether a method needs ``base_model``."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    IGNORED = "ignored"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method. Without a default it must be given for every tensor it applies to."""

    name: str
    scope: Scope
    default: float | bool | None = None
    required: bool = False
    kind: Kind = Kind.NUMBER
    low: float | None = None
    high: float | None = None
    """Bounds, inclusive."""
    note: str = ""

    def fault_of(self, number: float) -> str:
        """What is wrong with a number outside the bounds, as the end of a sentence; empty within them."""
        low, high = self.low, self.high
        if (low is None or number >= low) and (high is None or number <= high):
            return ""
        if low is not None and high is not None:
            return f"must lie within [{low:g}, {high:g}]"
        return f"must be at least {low:g}" if low is not None else f"must be at most {high:g}"


@dataclass(frozen=True)
class Method:
    """A merge method as recipes name it."""

    name: str
    target: str
    """``module:function`` of its arithmetic, imported only to merge."""
    parameters: tuple[Parameter, ...]
    base: Base
    paper: str
    """Where the method is defined."""
    inputs: tuple[int, int | None] = (1, None)
    """Least and greatest number of inputs; the base counts where ``base_counts``."""
    base_counts: bool = False
    """Whether the base is one of the counted inputs (slerp), not beside them (task vectors)."""
    passes: int = 1
    """How often each input is read; for time estimates."""
    cost: float = 1.0
    """Arithmetic per element and input, in units of a weighted sum; for time estimates."""
    normalised: Callable[[Any], bool] = lambda shared: bool(shared.get("normalize"))
    """Whether the weights are divided by their sum, which then must not be 0."""

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, if the method has it."""
        return next((entry for entry in self.parameters if entry.name == name), None)

    def load(self) -> Merge:
        """Import the arithmetic."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
