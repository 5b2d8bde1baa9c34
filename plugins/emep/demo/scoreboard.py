"""The scoreboard: base, parents, the best uniform average and the evolved merge, each task and combined, with
errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNIFORM = "uniform "
LINEAR = "linear average"
EVOLVED = "evolved"
START = "start"


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
    tasks: dict[str, Score]
    combined: Score


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
    """The scoreboard from the metrics of the benchmark engine: ``{model: {task: {acc, acc_stderr},
    combined}}``.

    Of all uniform averages only the best is kept: chosen on the very split that is shown, so the comparison
    favours it. Raises KeyError where the evolved merge is missing.
    """
    rows = [
        _row(name, entry)
        for name, entry in metrics.items()
        if isinstance(entry, Mapping) and "combined" in entry
    ]
    uniform = [row for row in rows if row.name.startswith(UNIFORM) or row.name == LINEAR]
    best = max(uniform, key=lambda row: row.combined.value, default=None)
    evolved = next((row for row in rows if row.name == EVOLVED), None)
    if evolved is None:
        raise KeyError(f"the benchmark has no entry {EVOLVED!r}")
    others = [row for row in rows if row not in uniform and row is not evolved]
    return Scoreboard((*others, *([best] if best else []), evolved), best, evolved)


def _row(name: str, entry: Mapping[str, Any]) -> Row:
    parts = entry.get("skills") or {task: values for task, values in entry.items() if task != "combined"}
    tasks = {part: _score(values) for part, values in parts.items() if isinstance(values, Mapping)}
    return Row(name, tasks, _score(entry["combined"]))


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
    tasks = list(dict.fromkeys(task for row in board.rows for task in row.tasks))
    table = [["model", *tasks, "combined"]]
    for row in board.rows:
        name = (
            f"best uniform average ({row.name.removeprefix(UNIFORM)})"
            if row is board.best_uniform
            else row.name
        )
        name = "evolved merge" if row is board.evolved else name
        name = "merge at the start" if name == START else name
        table.append(
            [name, *(str(row.tasks[task]) if task in row.tasks else "" for task in tasks), str(row.combined)]
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
