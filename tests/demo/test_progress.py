from __future__ import annotations

from emep.demo.progress import Progress


def task(task_id: str, state: str | None, map_index: int = -1, **times: str) -> dict[str, object]:
    return {"task_id": task_id, "state": state, "map_index": map_index, **times}


def test_only_what_changed_is_told():
    progress = Progress()
    assert progress.update([task("merge", "running")]) == ["merge: asks for its job"]
    assert progress.update([task("merge", "running")]) == []
    assert progress.update([task("merge", "deferred")]) == ["merge: waits for its job, without a worker"]
    assert progress.now == "merge"


def test_a_finished_task_says_how_long_it_took():
    done = task("merge", "success", start_date="2025-01-01T00:00:00Z", end_date="2025-01-01T00:01:05Z")
    progress = Progress()
    assert progress.update([done]) == ["merge: done after 1m5s"]
    assert (progress.done, progress.total) == (1, 1)


def test_mapped_tasks_are_told_apart():
    lines = Progress().update(
        [task("generation_0.candidates", "success", 0), task("generation_0.candidates", "failed", 1)]
    )
    assert lines == ["generation_0.candidates[0]: done", "generation_0.candidates[1]: failed"]


def test_generations_that_were_not_asked_for_count_for_nothing():
    progress = Progress()
    assert progress.update([task("generation_9.ask", "skipped"), task("merge", "success")]) == ["merge: done"]
    assert (progress.done, progress.total) == (1, 1)


def test_generations_told_are_known_by_number():
    progress = Progress()
    progress.update(
        [
            task("generation_10.tell", "success"),
            task("generation_2.tell", "success"),
            task("generation_3.tell", "running"),
        ]
    )
    assert progress.told() == [2, 10]
