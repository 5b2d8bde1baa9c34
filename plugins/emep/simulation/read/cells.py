"""Typed reading of tables; every refusal names file, line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from emep.scheduling.model import LabelTerm
from emep.simulation.read.errors import InputError, nearest, read_text
from emep.wire.units import parse_duration, parse_memory

_TRUE = frozenset({"true", "yes", "1"})
_FALSE = frozenset({"false", "no", "0"})


class Row:
    """One line of a table: its cells by column, stripped; an absent column reads as an empty cell."""

    __slots__ = ("_cells", "_file", "line")

    def __init__(self, file: str, line: int, cells: Mapping[str, str]) -> None:
        self._file, self.line, self._cells = file, line, cells

    def refuse(self, column: str, problem: str) -> NoReturn:
        """Raise InputError about a cell of this row."""
        raise InputError(self._file, self.line, column, problem)

    def text(self, column: str, default: str = "") -> str:
        """The cell as it is; ``default`` where it is empty."""
        return self._cells.get(column) or default

    def required(self, column: str) -> str:
        """The cell, which must not be empty."""
        value = self._cells.get(column)
        if not value:
            self.refuse(column, "is empty: expected a value")
        return value

    def time(self, column: str) -> float:
        """Seconds since the file's own epoch, 0 or more."""
        value = self.required(column)
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or seconds < 0:
            self.refuse(column, f"expected seconds as a finite number, 0 or more, not {value!r}")
        return seconds

    def duration(self, column: str, *, above_zero: bool = False) -> float | None:
        """Seconds from a number or text such as 2h; None where the cell is empty."""
        value = self._cells.get(column)
        if not value:
            return None
        try:
            seconds = parse_duration(value)
        except ValueError as problem:
            self.refuse(column, f"expected a duration: {problem}")
        if above_zero and seconds <= 0:
            self.refuse(column, f"expected a duration above 0, not {value!r}")
        return seconds

    def memory(self, column: str, default: int) -> int:
        """Bytes from a number or text such as 80Gi."""
        value = self._cells.get(column)
        if not value:
            return default
        try:
            return parse_memory(int(value) if value.isdigit() else value)
        except ValueError as problem:
            self.refuse(column, f"expected a memory size: {problem}")

    def number(self, column: str, default: float) -> float:
        """A finite number, 0 or more."""
        value = self._cells.get(column)
        if not value:
            return default
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or found < 0:
            self.refuse(column, f"expected a finite number, 0 or more, not {value!r}")
        return found

    def integer(self, column: str, minimum: int) -> int | None:
        """A whole number, ``minimum`` or more; None where the cell is empty."""
        value = self._cells.get(column)
        if not value:
            return None
        if not (value.isascii() and value.isdigit()) or int(value) < minimum:
            self.refuse(column, f"expected a whole number, {minimum} or more, not {value!r}")
        return int(value)

    def boolean(self, column: str) -> bool | None:
        """true or false (also yes, no, 1, 0); None where the cell is empty."""
        value = self._cells.get(column, "").lower()
        if not value:
            return None
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        self.refuse(column, f"expected true or false, not {self._cells[column]!r}")

    def choice(self, column: str, valid: Sequence[str]) -> str | None:
        """One of the words; None where the cell is empty."""
        value = self._cells.get(column)
        if not value:
            return None
        if value not in valid:
            self.refuse(column, f"unknown value {value!r}: {nearest(value, valid)}")
        return value

    def labels(self, column: str) -> tuple[LabelTerm, ...]:
        """Terms written ``label=value;label=value``."""
        value = self._cells.get(column)
        if not value:
            return ()
        terms = []
        for part in value.split(";"):
            key, equals, wanted = (piece.strip() for piece in part.partition("="))
            if not part.strip():
                continue
            if not equals or not key or not wanted:
                self.refuse(column, f"expected label=value;label=value, not {part.strip()!r}")
            terms.append(LabelTerm(key, wanted))
        return tuple(terms)


def read_table(path: str | Path, columns: Sequence[str], required: Sequence[str]) -> Iterator[Row]:
    """The rows of a CSV file whose header names some of ``columns``, all of ``required`` among them.

    Raises InputError for a header with an unknown, repeated or missing column and for a row of another width;
    empty lines are passed over.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _check_header(path, header, columns, required)
        width = len(header)
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if len(cells) != width:
                raise InputError(
                    path, reader.line_num, "", f"expected {width} cells as in the header, not {len(cells)}"
                )
            yield Row(str(path), reader.line_num, dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as problem:
        raise InputError(path, reader.line_num, "", f"is not CSV ({problem})") from problem


def _check_header(
    path: str | Path, header: list[str], columns: Sequence[str], required: Sequence[str]
) -> None:
    if not any(header):
        raise InputError(path, 1, "", f"expected a header line, with at least {','.join(required)}")
    for name in header:
        if name not in columns:
            raise InputError(path, 1, name or "(empty)", f"unknown column {name!r}: {nearest(name, columns)}")
        if header.count(name) > 1:
            raise InputError(path, 1, name, "is in the header twice: keep one")
    for name in required:
        if name not in header:
            raise InputError(path, 1, name, f"is missing from the header: {','.join(required)} are required")
