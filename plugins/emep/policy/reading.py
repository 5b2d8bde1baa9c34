"""Typed reading of a mapping, one key at a time; errors name the path to the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from emep.policy.errors import Path, PathPart, PolicyError
from emep.wire.suggest import suggest
from emep.wire.units import parse_duration

T = TypeVar("T")


class Value:
    """One value of the file and the path to it; every method raises PolicyError naming that path."""

    def __init__(self, raw: Any, path: Path, source: str) -> None:
        self.raw, self.path, self.source = raw, path, source

    def error(self, problem: str) -> PolicyError:
        """An error about this value."""
        return PolicyError(problem, self.path, self.source)

    def at(self, raw: Any, *parts: PathPart) -> Value:
        """A value found inside this one."""
        return Value(raw, self.path + parts, self.source)

    def mapping(self) -> Mapping[str, Any]:
        """A mapping with text keys; nothing at all (an empty YAML value) is an empty one."""
        if self.raw is None:
            return {}
        if not isinstance(self.raw, Mapping):
            raise self.error(f"expected a mapping of keys to values, not {self.raw!r}")
        for key in self.raw:
            if not isinstance(key, str) or not key:
                raise self.error(f"keys are text, not {key!r}: put it in quotes")
        return self.raw

    def known(self, keys: Iterable[str]) -> Mapping[str, Any]:
        """A mapping that holds none but ``keys``."""
        valid = list(keys)
        found = self.mapping()
        for key in found:
            if key not in valid:
                raise self.at(None, key).error(f"unknown key {key!r}: {suggest(key, valid)}")
        return found

    def items(self) -> Iterator[tuple[str, Value]]:
        """Keys and values of a mapping."""
        for key, raw in self.mapping().items():
            yield key, self.at(raw, key)

    def elements(self) -> Iterator[Value]:
        """Elements of a list; a single text stands for a list of one."""
        found = [self.raw] if isinstance(self.raw, str) else self.raw
        if not isinstance(found, (list, tuple)):
            raise self.error(f"expected a list, not {self.raw!r}")
        for index, raw in enumerate(found):
            yield self.at(raw, index)

    def duration(self) -> float:
        """Seconds, 0 or more."""
        try:
            return parse_duration(self.raw)
        except ValueError as problem:
            raise self.error(str(problem)) from None

    def number(self, minimum: float = 0.0) -> float:
        """A finite number, not below ``minimum``."""
        if (
            isinstance(self.raw, bool)
            or not isinstance(self.raw, (int, float))
            or not math.isfinite(self.raw)
        ):
            raise self.error(f"expected a number, not {self.raw!r}")
        if self.raw < minimum:
            raise self.error(f"must be {minimum:g} or more, not {self.raw:g}")
        return float(self.raw)

    def integer(self, minimum: int = 0) -> int:
        """A whole number, not below ``minimum``."""
        if isinstance(self.raw, bool) or not isinstance(self.raw, int):
            raise self.error(f"expected a whole number, not {self.raw!r}")
        if self.raw < minimum:
            raise self.error(f"must be {minimum} or more, not {self.raw}")
        return self.raw

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self.raw, bool):
            raise self.error(f"expected true or false, not {self.raw!r}")
        return self.raw

    def text(self) -> str:
        """Text that is not empty."""
        if not isinstance(self.raw, str) or not self.raw.strip():
            raise self.error(f"expected text, not {self.raw!r}")
        return self.raw.strip()

    def choice(self, choices: Iterable[str]) -> str:
        """One of the words."""
        valid = list(choices)
        if self.raw not in valid:
            raise self.error(f"unknown value {self.raw!r}: {suggest(str(self.raw), valid)}")
        return str(self.raw)

    def optional(self, read: Callable[[Value], T]) -> T | None:
        """``none`` (or an empty value) as None, anything else as ``read`` reads it."""
        return None if self.raw is None or self.raw == "none" else read(self)

    def texts(self) -> tuple[str, ...]:
        """A list of texts, each once."""
        return self.unique([(item, item.text()) for item in self.elements()])

    def unique(self, read: list[tuple[Value, str]]) -> tuple[str, ...]:
        """The texts read from a list, refused where one is named twice."""
        seen: set[str] = set()
        for item, text in read:
            if text in seen:
                raise item.error(f"{text!r} is listed twice: name it once")
            seen.add(text)
        return tuple(text for _, text in read)
