"""The error of an input file of the simulator: one line with file, line, field and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """A file that cannot be used; the command line prints it and exits 2.

    ``file`` is the path as it was given, ``line`` counts from 1 (None: the file as a whole), ``field`` is a
    column or a key, ``problem`` says what was expected.
    """

    def __init__(self, file: str | Path, line: int | None, field: str, problem: str) -> None:
        self.file, self.line, self.field, self.problem = str(file), line, field, problem
        place = self.file if line is None else f"{self.file}:{line}"
        super().__init__(": ".join(part for part in (place, field, problem) if part))


def nearest(word: str, valid: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the nearest valid one, else a few of those there are."""
    choices = list(valid)
    longer = [choice for choice in choices if len(word) > 1 and choice.startswith(word)]
    if longer:
        return f"did you mean {longer[0]!r}?"
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.4)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(choices[:24])
    return f"expected one of {shown}{', ...' if len(choices) > 24 else ''}"


def read_text(path: str | Path) -> str:
    """The text of a file (UTF-8, a byte order mark is dropped); raises InputError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(path, None, "", f"is not UTF-8 text (byte {problem.start})") from problem
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise InputError(path, None, "", f"cannot be read ({reason}): name a readable file") from problem
