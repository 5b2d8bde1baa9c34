"""The error of a policy, with the place of the mistake in its file."""

from __future__ import annotations

PathPart = str | int
Path = tuple[PathPart, ...]


class PolicyError(ValueError):
    """A policy that cannot be used: one sentence that names the source, the path to the key and the fix.

    ``path`` is the key's path as people write it (``queues.merge.preempts.critical[1]``), ``line`` its
    line in the file that was read, ``problem`` the sentence without either.
    """

    def __init__(
        self, problem: str, path: Path = (), source: str = "policy", line: int | None = None
    ) -> None:
        self.problem, self.parts, self.source, self.line = problem, path, source, line
        self.path = format_path(path)
        where = source if line is None else f"{source}:{line}"
        super().__init__(": ".join(part for part in (where, self.path, problem) if part))

    def __reduce__(self) -> tuple[type[PolicyError], tuple[str, Path, str, int | None]]:
        return PolicyError, (self.problem, self.parts, self.source, self.line)


def format_path(path: Path) -> str:
    """``("queues", "merge", "classes", 1)`` as ``queues.merge.classes[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
