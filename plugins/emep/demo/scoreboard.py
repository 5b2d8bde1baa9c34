"""The scoreboard: base, parents, best uniform average and evolved merge, by skill, with errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNIFORM = "best uniform average"
EVOLVED = "evolved"
START = "start"
_SHOWN = {EVOLVED: "evolved merge", START: "merge at the start of the search"}


@dataclass(frozen=True)
class Score:
    """A number with its standard error."""

    value: float
    stderr: float | None

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.stderr:.3f}" if self.stderr is not None else f"{self.value:.3f}"


@dataclass(frozen=True)
class Row:
    """One model of the scoreboard."""

    name: str
    skills: dict[str, Score]
    combined: Score
    of: str = ""
    """Which of several it is."""


@dataclass(frozen=True)
class Scoreboard:
    """Rows in the order in which they are shown; the evolved merge last."""

    rows: tuple[Row, ...]
    best_uniform: Row | None
    evolved: Row

    @property
    def gain(self) -> float | None:
        """Evolved merge less the best uniform average, combined."""
        return (
            None
            if self.best_uniform is None
            else self.evolved.combined.value - self.best_uniform.combined.value
        )


def read_scoreboard(metrics: Mapping[str, Any]) -> Scoreboard:
    """Read the scoreboard from the benchmark engine's metrics.

    These are ``{model: {skill: {acc, ..}, combined, of?}}``. The best uniform average was chosen on the very
    items that are shown, so the comparison favours it. Raises KeyError if the evolved merge is missing.
    """
    rows = [_row(name, entry) for name, entry in metrics.items() if isinstance(entry, Mapping)]
    evolved = next((row for row in rows if row.name == EVOLVED), None)
    if evolved is None:
        raise KeyError(f"the benchmark has no entry {EVOLVED!r}")
    best = next((row for row in rows if row.name == UNIFORM), None)
    others = [row for row in rows if row is not evolved and row is not best]
    return Scoreboard((*others, *([best] if best else []), evolved), best, evolved)


def _row(name: str, entry: Mapping[str, Any]) -> Row:
    skills = {key: _score(values) for key, values in entry.items() if key not in ("combined", "of")}
    return Row(name, skills, _score(entry["combined"]), str(entry.get("of", "")))


def _score(values: Any) -> Score:
    if not isinstance(values, Mapping):
        return Score(float(values), None)
    for key in ("acc", "score", "value", "mean"):
        if key in values:
            error = values.get(f"{key}_stderr", values.get("stderr"))
            return Score(float(values[key]), None if error is None else float(error))
    raise KeyError(f"no score in {sorted(values)}")


def as_text(board: Scoreboard) -> str:
    """A table of plain text, as wide as it needs."""
    skills = list(dict.fromkeys(skill for row in board.rows for skill in row.skills))
    table = [["model", *skills, "combined"]]
    for row in board.rows:
        name = _SHOWN.get(row.name, row.name) + (f" ({row.of})" if row.of else "")
        scores = [str(row.skills[skill]) if skill in row.skills else "" for skill in skills]
        table.append([name, *scores, str(row.combined)])
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = []
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
