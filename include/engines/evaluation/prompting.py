"""Turns a question into a prompt, with examples before it and the model's chat template around it.

Both are those of lm-evaluation-harness with its defaults: examples are drawn at random (seed 1234) from the
task's own items, never the question itself, an example being its prompt, a blank, its answer and an empty
line; with a chat template all of it is one message of the user, and choices follow without a blank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from engines.contract import BadInputError
from engines.evaluation.settings import check_truth, count
from engines.evaluation.tasks import Item, Task

FIELDS = ("num_fewshot", "apply_chat_template")
_SEED = 1234
_DELIMITER = " "
"""Between a prompt and a choice."""
_BETWEEN = "\n\n"
"""Between two examples."""


@dataclass(frozen=True)
class Prompting:
    """The text around a question. Texts (perplexity) are scored without any."""

    num_fewshot: int = 0
    """Examples before each question."""
    chat: bool = False
    """Whether prompts go through the tokenizer's chat template."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Prompting:
        """From an engine's input. Raises BadInputError."""
        return cls(count(given, "num_fewshot", 0, least=0), check_truth(given, "apply_chat_template"))

    def identity(self) -> dict[str, Any]:
        """What scores depend on: nothing where prompts are plain, so that earlier records still hold."""
        found: dict[str, Any] = {"num_fewshot": self.num_fewshot} if self.num_fewshot else {}
        return found | ({"apply_chat_template": True} if self.chat else {})

    @property
    def delimiter(self) -> str:
        """What stands between a prompt and a choice."""
        return "" if self.chat else _DELIMITER

    def check(self, tasks: Iterable[Task]) -> None:
        """Raises BadInputError where no task has questions to prompt, or one has too few for the examples."""
        asked = [task for task in tasks if task.kind == "choice"]
        if self.identity() and not asked:
            field = next(iter(self.identity()))
            raise BadInputError(
                f"input.{field}: it is for questions, and every task holds texts; leave it out",
                field=f"input.{field}",
            )
        for task in asked:
            if self.num_fewshot >= len(task.items):
                most = len(task.items) - 1
                raise BadInputError(
                    f"input.num_fewshot: task {task.name} has {most + 1} items, so a question can have at "
                    f"most {most} others as examples, not {self.num_fewshot}",
                    file=task.uri,
                    field="input.num_fewshot",
                )

    def contexts(self, task: Task, items: Iterable[Item]) -> list[str]:
        """The prompts of some of a task's questions, before any chat template."""
        if not self.num_fewshot:
            return [item.text for item in items]
        wanted = {item.id for item in items}
        drawn, found = Random(_SEED), {}
        # The generator goes on from question to question: all before a wanted one are drawn too.
        for item in task.items:
            examples = drawn.sample(task.items, self.num_fewshot + 1)
            if item.id in wanted:
                others = [entry for entry in examples if entry.id != item.id][: self.num_fewshot]
                found[item.id] = "".join(map(_example, others)) + item.text
            if len(found) == len(wanted):
                break
        return [found[item.id] for item in items]


def _example(item: Item) -> str:
    return f"{item.text}{_DELIMITER}{item.choices[item.answer]}{_BETWEEN}"


PLAIN = Prompting()
