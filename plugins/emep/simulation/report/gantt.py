"""Gantt chart of GPUs by NVLink group: a bar for each run, or how full each group was."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from emep.scheduling.model import GpuId, Node
from emep.simulation.report.charts import LEFT, PLOT_WIDTH, TOP, figure, time_axis
from emep.simulation.run.recording import Recording, RunSpan, number
from emep.wire.units import count_of

_MOST_BARS = 5000
_MOST_ROWS = 256
_MOST_MAP_ROWS = 160
_MAP_COLUMNS = 480


@dataclass(frozen=True, slots=True)
class Group:
    """An NVLink group, or the GPUs of one node that have none."""

    name: str
    gpus: tuple[GpuId, ...]


def groups_of(nodes: Sequence[Node]) -> list[Group]:
    """All groups of a cluster, in the order of its nodes."""
    found: dict[str, list[GpuId]] = {}
    for node in nodes:
        for gpu in node.gpus:
            found.setdefault(gpu.nvlink_group or f"{node.name} (no NVLink)", []).append(
                GpuId(node.name, gpu.index)
            )
    return [Group(name, tuple(gpus)) for name, gpus in found.items()]


def gantt(title: str, nodes: Sequence[Node], recording: Recording, span: tuple[float, float]) -> str:
    """The chart as a figure; a cluster without GPUs has none."""
    groups = groups_of(nodes)
    rows = sum(len(group.gpus) for group in groups)
    if not rows or span[1] <= span[0]:
        return ""
    if rows <= _MOST_ROWS and len(recording.runs) <= _MOST_BARS:
        return _bars(f"{title}: one bar a run, one line a GPU", groups, recording, span)
    return _map(title, groups, recording.runs, span)


def _bars(title: str, groups: Sequence[Group], recording: Recording, span: tuple[float, float]) -> str:
    rows = sum(len(group.gpus) for group in groups)
    row_height = max(2.0, min(10.0, 640.0 / rows))
    gap = max(2.0, row_height / 2)
    row_of: dict[GpuId, float] = {}
    parts: list[str] = []
    y = float(TOP)
    for group in groups:
        height = row_height * len(group.gpus)
        parts.append(
            f'<rect class="lane" x="{LEFT}" y="{y:.1f}" width="{PLOT_WIDTH}" height="{height:.1f}"/>'
        )
        if height + gap >= 9:
            label = escape(group.name)
            parts.append(
                f'<text class="y" x="{LEFT - 4}" y="{y + height / 2 + 3:.1f}"'
                f' textLength="{min(58, 6 * len(group.name))}" lengthAdjust="spacingAndGlyphs">'
                f"<title>{label}</title>{label}</text>"
            )
        for place, gpu in enumerate(group.gpus):
            row_of[gpu] = y + place * row_height
        y += height + gap
    scale = PLOT_WIDTH / (span[1] - span[0])
    for run in recording.runs:
        x, width = LEFT + (run.start - span[0]) * scale, max(0.4, (run.end - run.start) * scale)
        job = recording.outcomes[run.job].spec.job
        words = f"{job.id}: {number(run.start)} to {number(run.end)} s, {count_of(len(run.gpus), 'GPU')}"
        shapes = "".join(
            f"M{x:.1f} {top:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            for top, height in _stretches(sorted(row_of[gpu] for gpu in run.gpus), row_height)
        )
        if shapes:
            parts.append(
                f'<path class="bar c{run.job % 10}" d="{shapes}"><title>{escape(words)}</title></path>'
            )
    return figure(title, "".join(parts) + time_axis(*span, y), int(y) + 30)


def _stretches(tops: Sequence[float], row_height: float) -> Iterator[tuple[float, float]]:
    """Neighbouring rows as one shape: (top, height) of each stretch."""
    begin = previous = None
    for top in tops:
        if begin is not None and previous is not None and top - previous > row_height * 1.01:
            yield begin, previous + row_height - begin
            begin = None
        begin = top if begin is None else begin
        previous = top
    if begin is not None and previous is not None:
        yield begin, previous + row_height - begin


def _map(title: str, groups: Sequence[Group], runs: Sequence[RunSpan], span: tuple[float, float]) -> str:
    """How full each group was, as an image whose opacity is the share of its GPUs that were held."""
    per_row = -(-len(groups) // _MOST_MAP_ROWS)
    row_of = {gpu: index // per_row for index, group in enumerate(groups) for gpu in group.gpus}
    count = -(-len(groups) // per_row)
    sizes = np.zeros(count)
    for row in row_of.values():
        sizes[row] += 1
    held = _held_by_bin(runs, row_of, count, span)
    share = np.clip(held / sizes[:, None] / ((span[1] - span[0]) / _MAP_COLUMNS), 0.0, 1.0)
    scale = max(1, min(8, 480 // count))
    image = base64.b64encode(_png(np.repeat(share, scale, axis=0))).decode("ascii")
    height = count * scale
    what = "one line a group" if per_row == 1 else f"one line {per_row} groups"
    body = (
        f'<rect class="lane" x="{LEFT}" y="{TOP}" width="{PLOT_WIDTH}" height="{height}"/>'
        f'<image x="{LEFT}" y="{TOP}" width="{PLOT_WIDTH}" height="{height}" preserveAspectRatio="none"'
        f' href="data:image/png;base64,{image}"/>'
        + "".join(
            f'<text class="y" x="{LEFT - 4}" y="{y}"><title>{escape(group.name)}</title>{word}</text>'
            for y, group, word in ((TOP + 10, groups[0], "first"), (TOP + height, groups[-1], "last"))
        )
    )
    shown = f"{count_of(len(groups), 'group')}, {count_of(len(runs), 'run')}"
    words = f"{title}: {what}, the darker the fuller ({shown})"
    return figure(words, body + time_axis(*span, TOP + height), height + TOP + 30)


def _held_by_bin(
    runs: Sequence[RunSpan], row_of: dict[GpuId, int], count: int, span: tuple[float, float]
) -> npt.NDArray[np.float64]:
    """GPU-seconds held in every row and column.

    A run that holds g GPUs of a row adds g times the overlap to each column. Differences along time keep that
    cheap: whole columns in between are two marks, and only the two ends are computed.
    """
    width = (span[1] - span[0]) / _MAP_COLUMNS
    whole = np.zeros((count, _MAP_COLUMNS + 1))
    held = np.zeros((count, _MAP_COLUMNS))
    for run in runs:
        first, last = (run.start - span[0]) / width, (run.end - span[0]) / width
        low, high = min(int(first), _MAP_COLUMNS - 1), min(int(last), _MAP_COLUMNS - 1)
        rows: dict[int, int] = {}
        for gpu in run.gpus:
            rows[row_of[gpu]] = rows.get(row_of[gpu], 0) + 1
        for row, gpus in rows.items():
            if low == high:
                held[row, low] += gpus * (last - first)
                continue
            held[row, low] += gpus * (low + 1 - first)
            held[row, high] += gpus * (last - high)
            whole[row, low + 1] += gpus
            whole[row, high] -= gpus
    return np.asarray((held + np.cumsum(whole, axis=1)[:, :_MAP_COLUMNS]) * width)


def _png(opacity: npt.NDArray[np.float64]) -> bytes:
    """A PNG of one colour with this opacity, so that it suits any background (RFC 2083, colour type 6)."""
    height, width = opacity.shape
    pixels = np.zeros((height, 1 + 4 * width), dtype=np.uint8)
    pixels[:, 1::4], pixels[:, 2::4], pixels[:, 3::4] = 0x3B, 0x82, 0xC4
    pixels[:, 4::4] = np.rint(opacity * 255).astype(np.uint8)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(pixels.tobytes(), 9))
        + chunk(b"IEND", b"")
    )
