"""Tables of metrics, made from an engine's Result whatever it holds, as text and as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CELL = 60
"""Characters of a name or a value; the rest is cut."""
MAX_COLUMNS = 10
_PREFERRED = ("acc", "acc_norm", "bits_per_byte", "score", "value", "mean")
_NOT_ROWS = frozenset({"skills", "comparison", "warnings"})
_PLAIN = re.compile(r"[\w .,±+-]*")
_EMPHASIS = re.compile(r"\b_|_\b|__")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&:])")


@dataclass(frozen=True)
class Table:
    """A header and rows of as many cells; the first column has the names."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table_of(metrics: object) -> Table | None:
    """The table that an engine's metrics make; None where they are no rows of numbers.

    A benchmark's (model by skill) is a scoreboard; an evaluation's has a row for each task and one for all.
    """
    if not isinstance(metrics, Mapping):
        return None
    entries = {
        str(name): entry
        for name, entry in metrics.items()
        if isinstance(entry, Mapping) and name not in _NOT_ROWS
    }
    board = {name: entry for name, entry in entries.items() if isinstance(entry.get("combined"), Mapping)}
    if board:
        return _scoreboard(board)
    rows = {name: shown for name, entry in entries.items() if (shown := _numbers(entry))}
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))[:MAX_COLUMNS]
    return _table("task", columns, rows) if rows else None


def _scoreboard(board: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = {}
    for name, entry in board.items():
        of = entry.get("of")
        shown = f"{name} ({of})" if isinstance(of, str) and of else name
        rows[shown] = {
            str(key): score
            for key, value in entry.items()
            if isinstance(value, Mapping) and (score := _score(value))
        }
    skills = dict.fromkeys(key for row in rows.values() for key in row if key != "combined")
    return _table("model", [*list(skills)[: MAX_COLUMNS - 1], "combined"], rows)


def _table(corner: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, str]]) -> Table:
    return Table(
        (corner, *map(_cut, columns)),
        tuple((_cut(name), *(row.get(column, "") for column in columns)) for name, row in rows.items()),
    )


def _numbers(entry: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of one row, each with its standard error where it has one."""
    return {
        str(key): _with_error(value, entry.get(f"{key}_stderr"))
        for key, value in entry.items()
        if _is_number(value) and key != "skills" and not str(key).endswith("_stderr")
    }


def _score(entry: Mapping[str, Any]) -> str:
    for key in _PREFERRED:
        if _is_number(entry.get(key)):
            return _with_error(entry[key], entry.get(f"{key}_stderr", entry.get("stderr")))
    return ""


def _with_error(value: Any, error: Any) -> str:
    return f"{number(value)} ± {number(error)}" if _is_number(error) else number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float) -> str:
    """``1,234``, ``0.712``, ``1.23e+09``: as short as it says enough."""
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def _cut(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= MAX_CELL else f"{plain[: MAX_CELL - 3]}..."


def as_text(table: Table) -> list[str]:
    """Aligned lines: names to the left, numbers to the right."""
    every = [table.header, *table.rows]
    widths = [max(len(line[column]) for line in every) for column in range(len(table.header))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in every
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def as_markdown(table: Table) -> str:
    """A table in Markdown; names cannot add markup of their own."""
    lines = [table.header, ("-", *["-:"] * (len(table.header) - 1)), *table.rows]
    return "\n".join(
        "|" + "|".join(cell if place == 1 else escaped(cell) for cell in line) + "|"
        for place, line in enumerate(lines)
    )


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    if _PLAIN.fullmatch(text) and not _EMPHASIS.search(text):
        return text
    return _MARKDOWN.sub(r"\\\1", text)
