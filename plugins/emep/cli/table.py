"""Tables: with rich on a terminal, as plain lines into a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

_GAP = "  "
_LEAST_LAST = 24
"""The last column says why; it gets at least so much before other columns are left out."""
_COLOURS = {
    "running": "green", "up": "green", "healthy": "green", "completed": "green",
    "pending": "yellow", "starting": "cyan", "yielding": "magenta", "draining": "yellow", "drained": "yellow",
    "failed": "red", "dead": "red", "down": "red", "unhealthy": "red", "rejected": "red", "node down": "red",
}  # fmt: skip


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    header: bool = True,
    optional: Collection[str] = (),
) -> None:
    """Print a table; a column ``>NAME`` is set to the right.

    On a terminal that is too narrow, ``optional`` columns are left out, the first named first, and the last
    column is cut. Into a pipe everything is written.
    """
    cells = [[cell(value) for value in row] for row in rows]
    names = list(columns)
    if not sys.stdout.isatty():
        for line in plain_lines(names, cells, header=header):
            print(line)
        return
    width = shutil.get_terminal_size().columns
    names, cells = fit(names, cells, width, optional)
    _print_rich(names, cells, width, header)


def cell(value: object) -> str:
    """A value as its text; a dash for what is not there."""
    if value is None or value == "":
        return "-"
    return f"{value:g}" if isinstance(value, int | float) else printable(str(value))


def printable(text: str) -> str:
    """``text`` with line ends and control characters written out.

    Names that users submitted must not move the cursor or change colours on an operator's terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def widths(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column."""
    return [max(len(text) for text in column) for column in zip(*[_plain(names), *cells], strict=True)]


def plain_lines(names: Sequence[str], cells: Sequence[Sequence[str]], *, header: bool = True) -> list[str]:
    """The table as lines of text, nothing cut, no spaces at the end."""
    sizes = widths(names, cells)
    lines = []
    for row in [_plain(names), *cells] if header else cells:
        parts = [
            text.rjust(size) if name.startswith(">") else text.ljust(size)
            for name, text, size in zip(names, row, sizes, strict=True)
        ]
        lines.append(_GAP.join(parts).rstrip())
    return lines


def fit(
    names: list[str], cells: list[list[str]], width: int, optional: Collection[str]
) -> tuple[list[str], list[list[str]]]:
    """Leave out optional columns until the others fit and something is left for the last one."""
    for victim in optional:
        sizes = widths(names, cells)
        last = min(sizes[-1], _LEAST_LAST)
        if sum(sizes[:-1]) + len(_GAP) * (len(sizes) - 1) + last <= width:
            break
        if victim in names:
            place = names.index(victim)
            names = names[:place] + names[place + 1 :]
            cells = [row[:place] + row[place + 1 :] for row in cells]
    return names, cells


def _plain(names: Sequence[str]) -> list[str]:
    return [name.lstrip(">") for name in names]


def _print_rich(names: Sequence[str], cells: Sequence[Sequence[str]], width: int, header: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sizes = widths(names, cells)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header, header_style="bold")
    rest = width - sum(sizes[:-1]) - len(_GAP) * len(sizes)
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        fixed = size if number < len(sizes) - 1 else max(1, min(size, rest))
        table.add_column(
            name.lstrip(">"),
            justify="right" if name.startswith(">") else "left",
            width=fixed,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in cells:
        table.add_row(*(Text(text, style=_COLOURS.get(text, "")) for text in row))
    Console(highlight=False).print(table)
