"""Tasks: JSONL files, one item a line, read strictly.

``{"id", "prompt", "choices", "answer"}`` is scored by accuracy (``answer``: the choice's number from 0, or
its text), ``{"id", "text"}`` by perplexity; ``"skill"`` groups items (default: the task's name),
``"metadata"`` is not looked at. A file holds one kind.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.artifacts import uri_to_path
from engines.contract import BadInputError

RESERVED = ("combined", "skills", "comparison", "warnings")
"""Names in an evaluation's metrics that are no task's."""
_CHOICE = ("id", "prompt", "choices", "answer", "skill", "metadata")
_TEXT = ("id", "text", "skill", "metadata")


@dataclass(frozen=True)
class Item:
    """One question (``choices`` filled) or one text."""

    id: str
    skill: str
    text: str
    """The prompt, or the text itself."""
    choices: tuple[str, ...] = ()
    answer: int = -1
    """Number of the right choice."""


@dataclass(frozen=True)
class Task:
    """A JSONL file's items."""

    name: str
    """The file's name without its suffix."""
    uri: str
    digest: str
    """SHA-256 of the file's bytes."""
    kind: str
    """``choice`` or ``text``."""
    items: tuple[Item, ...]

    @property
    def skills(self) -> list[str]:
        """Skills in the order of their first item."""
        return list(dict.fromkeys(item.skill for item in self.items))

    def limited(self, limit: int | None) -> tuple[Item, ...]:
        """The first ``limit`` items; all where it is None."""
        return self.items if limit is None else self.items[:limit]


def load_tasks(uris: Iterable[str]) -> list[Task]:
    """Read tasks. Raises BadInputError where one is wrong, none is given, or two share a name."""
    tasks: dict[str, Task] = {}
    for uri in uris:
        task = load_task(uri)
        if task.name in tasks:
            raise BadInputError(
                f"tasks: '{task.name}' is given twice ({tasks[task.name].uri} and {uri}); rename one file",
                file=uri,
                field="tasks",
            )
        tasks[task.name] = task
    if not tasks:
        raise BadInputError("tasks: give at least one JSONL file", field="tasks")
    return list(tasks.values())


def load_task(uri: str) -> Task:
    """Read one task. Raises BadInputError that names file, line and field."""
    path = uri_to_path(uri)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(
            f"{path}: cannot read the task: {error.strerror}", file=str(path), field="tasks"
        ) from error
    name = path.name.removesuffix(".jsonl")
    if name in RESERVED:
        raise BadInputError(
            f"{path}: results have an entry '{name}' of their own; rename the file",
            file=str(path),
            field="tasks",
        )
    items: list[Item] = []
    lines: dict[str, int] = {}
    # Not splitlines(): a text may hold line separators of Unicode, which JSON does not escape.
    for number, line in enumerate(_text_of(data, path).split("\n"), start=1):
        if not line.strip():
            continue
        item = _Line(path, number).item(line, name)
        if item.id in lines:
            raise _Line(path, number).wrong("id", f"'{item.id}' is already on line {lines[item.id]}")
        if items and bool(item.choices) != bool(items[0].choices):
            raise _Line(path, number).wrong(
                "choices", "questions and texts are mixed; put them into two files"
            )
        lines[item.id] = number
        items.append(item)
    if not items:
        raise BadInputError(f"{path}: has no items", file=str(path), field="tasks")
    kind = "choice" if items[0].choices else "text"
    return Task(name, uri, hashlib.sha256(data).hexdigest(), kind, tuple(items))


def _text_of(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInputError(
            f"{path}, line {line}: is not UTF-8 text", file=str(path), field="tasks"
        ) from error


def shared_items(first: Iterable[Task], second: Iterable[Task]) -> list[str]:
    """Ids of items of ``first`` with the same text as one of ``second``; a search must not use them."""
    texts = {(item.text, item.choices) for task in second for item in task.items}
    return sorted({item.id for task in first for item in task.items if (item.text, item.choices) in texts})


def _encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8; JSON's escapes allow one that cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


class _Line:
    """One line of a file, for reading and for messages."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number

    def wrong(self, field: str, message: str) -> BadInputError:
        return BadInputError(
            f"{self.path}, line {self.number}, {field}: {message}", file=str(self.path), field=field
        )

    def item(self, line: str, task: str) -> Item:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.wrong("item", f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise self.wrong(
                "item", 'must be an object, as in {"id": "1", "prompt": "..", "choices": [..], "answer": 0}'
            )
        self._check_keys(data)
        ident = data.get("id")
        if isinstance(ident, bool) or not isinstance(ident, str | int) or ident == "":
            raise self.wrong("id", f"{ident!r} must be a text or a whole number")
        skill = self._text(data, "skill") if "skill" in data else task
        if "text" in data:
            return Item(str(ident), skill, self._text(data, "text"))
        choices = self._choices(data)
        return Item(str(ident), skill, self._text(data, "prompt"), choices, self._answer(data, choices))

    def _check_keys(self, data: Mapping[str, Any]) -> None:
        if not {"text", "prompt"} & set(data) and set(data) - set(_CHOICE):
            # Some other file was named: nothing of it is repeated.
            raise self.wrong(
                "item", "is no item of a task: one has 'prompt', 'choices' and 'answer', or 'text'"
            )
        known = _TEXT if "text" in data else _CHOICE
        for key in data:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
                raise self.wrong(key, f"unknown field; {hint}")

    def _text(self, data: Mapping[str, Any], key: str) -> str:
        value = data.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(
                key, "is missing" if value is None else f"{value!r} must be a text that is not empty"
            )
        if not _encodable(value):
            raise self.wrong(key, "holds half of a surrogate pair, which is no character")
        return value

    def _choices(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        value = data.get("choices")
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(c, str) and c for c in value):
            raise self.wrong("choices", "must be a list of at least two texts that are not empty")
        if not all(map(_encodable, value)):
            raise self.wrong("choices", "hold half of a surrogate pair, which is no character")
        if len(set(value)) < len(value):
            raise self.wrong("choices", "has the same choice twice")
        return tuple(value)

    def _answer(self, data: Mapping[str, Any], choices: tuple[str, ...]) -> int:
        value = data.get("answer")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
            return value
        if isinstance(value, str) and value in choices:
            return choices.index(value)
        raise self.wrong(
            "answer", f"{value!r} must be a choice's number (0 to {len(choices) - 1}) or its text"
        )
