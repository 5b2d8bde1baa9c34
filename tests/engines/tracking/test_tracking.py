"""Events arrive at least once and count once, whoever is killed meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engines.contract import BadInputError
from engines.tracking import Event, JsonlTracker, open_tracker


def test_an_event_written_twice_counts_once(tmp_path: Path) -> None:
    tracker = JsonlTracker(str(tmp_path))
    for event in (
        Event("1", "r", "started"),
        Event("2", "r", "finished", {"acc": 0.5}),
        Event("1", "r", "started"),
    ):
        tracker.log(event)
    assert [(event.event_id, event.kind) for event in tracker.events()] == [
        ("1", "started"),
        ("2", "finished"),
    ]


def test_a_torn_line_costs_that_event_and_no_other(tmp_path: Path) -> None:
    tracker = JsonlTracker(str(tmp_path))
    tracker.log(Event("1", "r", "started"))
    with tracker.path.open("ab") as file:
        file.write(b'{"event_id": "2", "run')
    tracker.log(Event("3", "r", "finished"))
    assert [event.event_id for event in tracker.events()] == ["1", "3"]


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for index in range(20):
            JsonlTracker(str(tmp_path)).log(Event(f"{number}-{index}", "r", "metrics", {"x": "y" * 500}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(JsonlTracker(str(tmp_path)).events())) == 80


def test_numbers_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"data\.loss is not a finite number"):
        open_tracker(str(tmp_path)).log(Event("1", "r", "metrics", {"loss": float("nan")}))
    assert not (tmp_path / "events.jsonl").exists()


def test_a_tracker_that_is_none_is_refused() -> None:
    with pytest.raises(BadInputError, match="no tracker"):
        open_tracker("mlflow://host")
