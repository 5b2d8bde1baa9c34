"""ExperimentTracker: records what happened in runs, as events that may arrive more than once.

An event has an id. A writer that cannot be sure that it was written writes it again under the same id, and
readers count it once. The local tracker appends JSON lines; trackers of services share the interface.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from engines.artifacts import canonical_json, uri_to_path
from engines.contract import BadInputError


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    event_id: str
    """The same for every try to write the same event."""
    run_id: str
    kind: str
    """started, finished, metrics, artifact, ..."""
    data: dict[str, Any] = field(default_factory=dict)
    """JSON values without NaN."""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    """ISO 8601, UTC."""


class ExperimentTracker(Protocol):
    """Takes events, at least once each."""

    def log(self, event: Event) -> None:
        """Record an event durably.

        Raises BadInputError for data that JSON cannot hold, OSError where it fails.
        """
        ...


class JsonlTracker:
    """Appends events to ``events.jsonl`` in a folder; several processes may at once."""

    def __init__(self, uri: str) -> None:
        self.path = uri_to_path(uri) / "events.jsonl"

    def log(self, event: Event) -> None:
        """Append one line, durably. A torn last line of a killed writer is ended first."""
        line = canonical_json(asdict(event)) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def events(self) -> Iterator[Event]:
        """Every event once, in the order of first arrival; torn lines are left out."""
        return _read(self.path)


def open_tracker(uri: str) -> ExperimentTracker:
    """The tracker behind a URI. Raises BadInputError for a scheme that none here serves."""
    scheme = urlsplit(uri).scheme
    if scheme in {"", "file"}:
        return JsonlTracker(uri)
    raise BadInputError(f"{uri}: no tracker for '{scheme}://'; use file:///absolute/path", file=uri)


def _read(path: Path) -> Iterator[Event]:
    seen: set[str] = set()
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                event = Event(**json.loads(line))
            except (ValueError, TypeError):
                continue
            if event.event_id not in seen:
                seen.add(event.event_id)
                yield event
