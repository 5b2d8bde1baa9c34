"""An engine's Result in a few lines of text: how it ended, its metrics, what it has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emep.results.tables import as_text, number, table_of
from emep.wire.units import format_duration, format_memory

MAX_WARNINGS = 10
MAX_OUTPUTS = 20


def summary(result: object) -> list[str]:
    """Lines for the end of a task's log; empty where there is no Result to read."""
    if not isinstance(result, Mapping) or "metrics" not in result:
        return []
    metrics = result["metrics"] if isinstance(result["metrics"], Mapping) else {}
    lines = [f"Result: {' '.join(_ended(result))}"]
    table = table_of(metrics)
    lines += [f"  {line}" for line in (as_text(table) if table else [])]
    lines += [f"  {line}" for line in facts(metrics)]
    lines += [f"  {name}: {where}" for name, where in outputs(result)]
    return lines + [f"  warning: {text}" for text in warnings(metrics)]


def _ended(result: Mapping[str, Any]) -> list[str]:
    words = [_line(result.get("status") or "done")]
    if isinstance(seconds := result.get("seconds"), (int, float)) and seconds >= 0:
        words.append(f"in {format_duration(seconds) if seconds >= 60 else f'{seconds:.1f}s'}")
    if isinstance(peak := result.get("peak_memory_bytes"), int) and peak > 0:
        words.append(f"with at most {format_memory(peak)} of memory")
    return words


def facts(metrics: Mapping[str, Any]) -> list[str]:
    """Metrics that are single values, and the verdict of a comparison, each in a line."""
    lines = []
    for name, value in metrics.items():
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int) and str(name).endswith("bytes"):
            lines.append(f"{_line(name)}: {format_memory(value)}")
        elif isinstance(value, (int, float)):
            lines.append(f"{_line(name)}: {number(value)}")
        elif isinstance(value, str) and value:
            lines.append(f"{_line(name)}: {_line(value)}")
    comparison = metrics.get("comparison", metrics if "verdict" in metrics else None)
    if isinstance(comparison, Mapping) and isinstance(comparison.get("delta"), (int, float)):
        error = comparison.get("stderr")
        shown = f" ± {number(error)}" if isinstance(error, (int, float)) else ""
        lines.append(
            f"against the baseline: {_line(comparison.get('verdict'))}, "
            f"difference {comparison['delta']:+.3f}{shown} on {comparison.get('n')} items"
        )
    return lines


def outputs(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was written: name, and URI with its size."""
    found = result.get("outputs")
    if not isinstance(found, Mapping):
        return []
    shown = []
    for name, output in list(found.items())[:MAX_OUTPUTS]:
        if isinstance(output, Mapping) and output.get("uri"):
            size: Any = output.get("bytes")
            words = f" ({format_memory(size)})" if _is_size(size) else ""
            shown.append((_line(name), _line(output["uri"]) + words))
    return shown


def warnings(metrics: object) -> list[str]:
    """The engine's warnings."""
    found = metrics.get("warnings") if isinstance(metrics, Mapping) else None
    return [_line(text) for text in found[:MAX_WARNINGS]] if isinstance(found, list) else []


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def _line(text: object) -> str:
    return " ".join(str(text).split())[:500]
