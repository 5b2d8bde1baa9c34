"""Scores items with a backend: encodes them, and turns the model's answers into item scores."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from engines.contract import EngineError
from engines.evaluation.prompting import PLAIN, Prompting
from engines.evaluation.tasks import Item, Task
from engines.inference.backend import InferenceBackend, Request


class NonFiniteScore(EngineError):
    """A model that answers with NaN or infinity: its weights are broken, whatever the machine does."""

    def __init__(self, task: str, item: str, value: float) -> None:
        super().__init__(f"task {task}, item {item}: the score is {value}", code="non_finite", field=item)


@dataclass(frozen=True)
class ItemScore:
    """One item's outcome; plain numbers, so that it can be stored and summed anywhere."""

    id: str
    skill: str
    logprobs: tuple[float, ...]
    """Of each choice (nats), or of the whole text."""
    lengths: tuple[int, ...] = ()
    """Characters of each choice."""
    answer: int = -1
    tokens: int = 0
    words: int = 0
    """Tokens, words and bytes of a text item."""
    bytes: int = 0

    @cached_property
    def picked(self) -> int:
        """The most probable choice; the first of equals."""
        return self.logprobs.index(max(self.logprobs))

    @cached_property
    def picked_normalised(self) -> int:
        """The most probable choice per character; the first of equals."""
        values = [value / length for value, length in zip(self.logprobs, self.lengths, strict=True)]
        return values.index(max(values))

    @property
    def correct(self) -> float:
        """1 where the most probable choice is right."""
        return float(self.picked == self.answer)

    @property
    def correct_normalised(self) -> float:
        """1 where the most probable choice per character is right."""
        return float(self.picked_normalised == self.answer)

    @cached_property
    def answer_logprob(self) -> float:
        """Log-probability of the right choice among the choices (nats): finer than right or wrong."""
        top = max(self.logprobs)
        total = math.log(sum([math.exp(value - top) for value in self.logprobs])) + top
        return self.logprobs[self.answer] - total

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ItemScore:
        """The reverse of ``to_json``."""
        return cls(**{**data, "logprobs": tuple(data["logprobs"]), "lengths": tuple(data["lengths"])})


@dataclass(frozen=True)
class Prepared:
    """Items as token ids, ready to be scored by any number of weights of one tokenizer."""

    task: Task
    items: tuple[Item, ...]
    requests: list[Request] = field(default_factory=list)
    """Of the choices, item by item."""
    texts: list[tuple[int, ...]] = field(default_factory=list)


def prepare(
    backend: InferenceBackend, task: Task, items: Sequence[Item], prompting: Prompting = PLAIN
) -> Prepared:
    """Encode items once.

    Raises BadInputError if a choice has no token of its own, or if prompts need a chat template that the
    tokenizer does not have.
    """
    if task.kind == "text":
        return Prepared(task, tuple(items), texts=backend.encode_texts([item.text for item in items]))
    contexts = prompting.contexts(task, items)
    if prompting.chat:
        contexts = backend.chat(contexts)
    pairs = [
        (context, prompting.delimiter + choice)
        for context, item in zip(contexts, items, strict=True)
        for choice in item.choices
    ]
    return Prepared(task, tuple(items), requests=backend.encode_pairs(pairs))


class Preparer:
    """``prepare`` that remembers, for scoring many weights of one tokenizer on the same items."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Prompting, tuple[str, ...]], Prepared] = {}

    def __call__(
        self, backend: InferenceBackend, task: Task, items: Sequence[Item], prompting: Prompting = PLAIN
    ) -> Prepared:
        """As ``prepare``."""
        key = (task.digest, prompting, tuple(item.id for item in items))
        if key not in self._known:
            self._known[key] = prepare(backend, task, items, prompting)
        return self._known[key]


def score(backend: InferenceBackend, prepared: Prepared) -> list[ItemScore]:
    """Score all items in order. Raises NonFiniteScore naming the first item with NaN or infinity."""
    if prepared.task.kind == "text":
        found = _score_texts(backend, prepared)
    else:
        found = _score_choices(backend, prepared)
    for entry in found:
        for value in entry.logprobs:
            if not math.isfinite(value):
                raise NonFiniteScore(prepared.task.name, entry.id, value)
    return found


def _score_choices(backend: InferenceBackend, prepared: Prepared) -> list[ItemScore]:
    answers = iter(backend.loglikelihood(prepared.requests))
    return [
        ItemScore(
            id=item.id,
            skill=item.skill,
            logprobs=tuple(next(answers).logprob for _ in item.choices),
            lengths=tuple(len(choice) for choice in item.choices),
            answer=item.answer,
        )
        for item in prepared.items
    ]


def count_words(text: str) -> int:
    """Count words as lm-evaluation-harness does: the parts between runs of white space.

    White space at an end has an empty part beyond it, which counts too.
    """
    return len(re.split(r"\s+", text))


def _score_texts(backend: InferenceBackend, prepared: Prepared) -> list[ItemScore]:
    sums = backend.loglikelihood_rolling(prepared.texts)
    return [
        ItemScore(
            id=item.id,
            skill=item.skill,
            logprobs=(total,),
            tokens=len(ids),
            words=count_words(item.text),
            bytes=len(item.text.encode()),
        )
        for item, ids, total in zip(prepared.items, prepared.texts, sums, strict=True)
    ]
