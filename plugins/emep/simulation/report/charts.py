"""Charts as SVG text: curves over virtual time, drawn without any script so that they open everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 30
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

_TIME_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart: points by time; ``slot`` picks its colour, ``dashed`` draws a target."""

    name: str
    points: Sequence[tuple[float, float]]
    slot: int = 0
    dashed: bool = False
    filled: bool = False


def average_by_bin(
    times: Sequence[float], values: Sequence[float], start: float, end: float, bins: int
) -> list[tuple[float, float]]:
    """Time-weighted means of a step curve in equal bins: 80,000 steps draw as a few hundred points."""
    if end <= start or not times:
        return []
    width = (end - start) / bins
    sums = [0.0] * bins
    for number, begin in enumerate(times):
        stop = min(times[number + 1] if number + 1 < len(times) else end, end)
        first, last = max(begin, start), stop
        if last <= first:
            continue
        low = min(int((first - start) / width), bins - 1)
        high = min(int((last - start) / width), bins - 1)
        for index in range(low, high + 1):
            left, right = start + index * width, start + (index + 1) * width
            sums[index] += values[number] * max(0.0, min(right, last) - max(left, first))
    return [(start + (index + 0.5) * width, total / width) for index, total in enumerate(sums)]


def chart(title: str, curves: Sequence[Curve], span: tuple[float, float], top: float, unit: str = "") -> str:
    """A figure with axes, a legend and the curves over ``span``; values from 0 to ``top``."""
    start, end = span
    top = top if top > 0 else 1.0
    scale_x = PLOT_WIDTH / (end - start) if end > start else 0.0
    parts = [_axes(start, end, top, unit)]
    for curve in curves:
        spots = [
            (LEFT + (time - start) * scale_x, TOP + PLOT_HEIGHT * (1 - min(value, top) / top))
            for time, value in curve.points
        ]
        if not spots:
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        base = TOP + PLOT_HEIGHT
        if curve.filled:
            closed = f"{path}L{spots[-1][0]:.1f} {base}L{spots[0][0]:.1f} {base}Z"
            parts.append(f'<path class="fill c{curve.slot % 10}" d="{closed}"/>')
        dashed = " dashed" if curve.dashed else ""
        parts.append(f'<path class="line c{curve.slot % 10}{dashed}" d="{path}"/>')
    return figure(title, "".join(parts), HEIGHT, legend(curves))


def figure(title: str, body: str, height: int, below: str = "") -> str:
    """An SVG of the report's width under its title."""
    name = escape(title)
    return (
        f"<figure><figcaption>{name}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{body}</svg>{below}</figure>'
    )


def legend(curves: Sequence[Curve]) -> str:
    """Names of curves beside their colours; nothing where there is only one."""
    if len(curves) < 2:
        return ""
    items = "".join(
        f'<span class="key c{curve.slot % 10}{" dashed" if curve.dashed else ""}">{escape(curve.name)}</span>'
        for curve in curves
        if curve.name
    )
    return f'<div class="legend">{items}</div>'


def _axes(start: float, end: float, top: float, unit: str) -> str:
    parts = []
    for value in ticks(0.0, top, 4):
        y = TOP + PLOT_HEIGHT * (1 - value / top)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{y + 4:.1f}">{value:g}{unit}</text>')
    return "".join(parts) + time_axis(start, end, TOP + PLOT_HEIGHT)


def time_axis(start: float, end: float, y: float) -> str:
    """Marks of virtual time under a plot, in the largest unit that fits twice into the span."""
    span = end - start
    size, unit = next(((s, u) for s, u in _TIME_UNITS if span >= 2 * s), _TIME_UNITS[-1])
    parts = [f'<path class="axis" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>']
    scale = PLOT_WIDTH / span if span > 0 else 0.0
    for value in ticks(start / size, end / size, 8):
        x = LEFT + (value * size - start) * scale
        parts.append(f'<text class="x" x="{x:.1f}" y="{y + 18:.1f}">{value:g} {unit}</text>')
    return "".join(parts)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, from ``low`` to ``high``: about ``most``."""
    if high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]
