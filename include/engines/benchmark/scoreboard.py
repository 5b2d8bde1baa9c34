"""The scoreboard: a JSON document, and the same as a plain-text table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.benchmark.rows import Row

SCHEMA_VERSION = 1


def scoreboard(
    rows: Sequence[Row],
    metrics: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
    *,
    tasks: Mapping[str, str],
    limit: int | None,
    backend: Mapping[str, Any],
    of: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The document. ``metrics``, ``failures``, ``of`` (what it is) by row name; ``tasks``: digest by name.

    A group's rows become one line, that of the best combined score; all of them are listed under ``groups``.
    """
    lines: list[dict[str, Any]] = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        line = _line(row.name, metrics.get(row.name), failures.get(row.name))
        if of and row.group is None and row.name in of:
            line["of"] = of[row.name]
        if row.group is None:
            lines.append(line)
            continue
        if row.group not in groups:
            lines.append({"name": row.group})
        groups.setdefault(row.group, []).append(line)
    for index, line in enumerate(lines):
        if line["name"] in groups:
            lines[index] = _best(line["name"], groups[line["name"]])
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": lines,
        "groups": groups,
        "skills": list(dict.fromkeys(skill for line in lines for skill in line.get("skills", {}))),
        "tasks": dict(tasks),
        "limit": limit,
        "backend": dict(backend),
        "warnings": list(warnings),
    }


def main_metric(combined: Mapping[str, Any]) -> str:
    """The metric that a line is ranked by."""
    return "acc" if "acc" in combined else "bits_per_byte"


def table(board: Mapping[str, Any]) -> str:
    """The lines with a column per skill and the combined score, each with its standard error."""
    heads = ["model", *board["skills"], "combined"]
    cells = [heads]
    for line in board["rows"]:
        shown = line["name"] if "of" not in line else f"{line['name']} ({line['of']})"
        if "failed" in line:
            cells.append([shown, *["failed"] * (len(heads) - 1)])
            continue
        columns = [_cell(line["skills"].get(skill)) for skill in board["skills"]]
        cells.append([shown, *columns, _cell(line["combined"])])
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]
    lines.insert(1, "-" * len(lines[0]))
    notes = [f"{line['name']}: {line['failed']}" for line in board["rows"] if "failed" in line]
    notes += [f"warning: {warning}" for warning in board["warnings"]]
    return "\n".join([*lines, *notes]) + "\n"


def _line(name: str, metrics: Mapping[str, Any] | None, failure: str | None) -> dict[str, Any]:
    if metrics is None:
        return {"name": name, "failed": failure or "not evaluated"}
    return {"name": name, "skills": metrics["skills"], "combined": metrics["combined"]}


def _best(group: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    done = [line for line in lines if "failed" not in line]
    if not done:
        return {"name": group, "failed": str(lines[0]["failed"])}
    metric = main_metric(done[0]["combined"])
    sign = 1.0 if metric == "acc" else -1.0
    best = max(done, key=lambda line: sign * line["combined"][metric])
    return {"name": group, "of": best["name"], "skills": best["skills"], "combined": best["combined"]}


def _cell(metrics: Mapping[str, Any] | None) -> str:
    if metrics is None:
        return "-"
    metric = main_metric(metrics)
    error = metrics[f"{metric}_stderr"]
    return f"{metrics[metric]:.3f}" if error is None else f"{metrics[metric]:.3f} ± {error:.3f}"
