"""The run as it goes on: from snapshots of its tasks to lines and to the numbers of a bar. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from emep.wire.units import format_duration

DONE = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
_SHOWN = frozenset({"running", "deferred", "success", "failed", "up_for_retry", "upstream_failed"})


@dataclass
class Progress:
    """What has been seen of a run; ``update`` says what is new."""

    states: dict[tuple[str, int], str] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    now: str = ""
    """Tasks at work, for the bar."""

    def update(self, tasks: Iterable[dict[str, Any]]) -> list[str]:
        """Take a snapshot; the lines that tell what has changed since the last one."""
        lines, at_work = [], []
        self.done = self.total = 0
        for task in tasks:
            state = task.get("state") or "none"
            key = (task["task_id"], task.get("map_index", -1))
            if state == "skipped" or (state == "none" and task["task_id"].startswith("generation_")):
                # Generations that the run does not ask for, and those that may still turn out so.
                self.states[key] = state
                self.total += state != "skipped"
                continue
            self.total += 1
            self.done += state in DONE
            if state in ("running", "deferred"):
                at_work.append(_name(task))
            if self.states.get(key) != state and state in _SHOWN:
                lines.append(_line(task, state))
            self.states[key] = state
        self.now = ", ".join(at_work)
        return lines

    def told(self) -> list[int]:
        """Generations whose tell has succeeded."""
        return sorted(
            int(task_id.split(".")[0].removeprefix("generation_"))
            for (task_id, _), state in self.states.items()
            if task_id.endswith(".tell") and state == "success"
        )


def _name(task: dict[str, Any]) -> str:
    index = task.get("map_index", -1)
    return f"{task['task_id']}[{index}]" if index is not None and index >= 0 else str(task["task_id"])


def _line(task: dict[str, Any], state: str) -> str:
    words = {
        "running": "asks for its job",
        "deferred": "waits for its job, without a worker",
        "success": "done",
        "failed": "failed",
        "up_for_retry": "failed, will be tried again",
        "upstream_failed": "cannot run: a task before it failed",
    }
    text = f"{_name(task)}: {words[state]}"
    seconds = _seconds(task) if state in ("success", "failed") else None
    return f"{text} after {format_duration(seconds)}" if seconds and seconds >= 1 else text


def _seconds(task: dict[str, Any]) -> float | None:
    try:
        start, end = (
            datetime.fromisoformat(task[key].replace("Z", "+00:00")) for key in ("start_date", "end_date")
        )
    except (KeyError, AttributeError, ValueError):
        return None
    return (end - start).total_seconds()
