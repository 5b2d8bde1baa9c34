"""The score book: item scores that survive a crash, keyed by everything that they depend on.

A key is the SHA-256 of weights digest, task digest and backend identity; below it scores lie by item id. So
new weights at an old path never find old scores, and a run that was killed goes on at its next item.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engines.artifacts import canonical_json
from engines.checkpoint import CheckpointStore, checkpoint_seconds
from engines.evaluation.scoring import ItemScore

SAVE_EVERY_SECONDS = 20.0
SCORING_VERSION = 2
"""Raised whenever the same answers of a model would be stored as other scores."""


def score_key(weights: str, task: str, backend: Mapping[str, Any]) -> str:
    """Key of the scores of one task under one model. ``backend``: its ``identity()``."""
    given = {"weights": weights, "task": task, "backend": backend, "scoring": SCORING_VERSION}
    return hashlib.sha256(canonical_json(given)).hexdigest()


class ScoreBook:
    """Item scores in memory, saved through a CheckpointStore.

    A checkpoint's step is the number of items scored. ``save_every``: items after which to save, else time
    decides (``EMEP_CHECKPOINT_SECONDS``).
    """

    def __init__(
        self,
        checkpoints: CheckpointStore | None = None,
        *,
        save_every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoints, self._save_every, self._clock = checkpoints, save_every, clock
        self._scores: dict[str, dict[str, ItemScore]] = {}
        self._seconds = checkpoint_seconds(SAVE_EVERY_SECONDS)
        self._forgotten = 0
        self._saved_at, self._unsaved = clock(), 0
        self.resumed_from: int | None = None
        found = checkpoints.latest() if checkpoints else None
        if found is not None:
            self.resumed_from = found.step
            state = found.state() or {}
            self._forgotten = int(state.get("forgotten", 0))
            for key, entries in state.get("scores", {}).items():
                self._scores[key] = {entry["id"]: ItemScore.from_json(entry) for entry in entries}

    def __len__(self) -> int:
        return self._forgotten + sum(map(len, self._scores.values()))

    def known(self, key: str) -> Mapping[str, ItemScore]:
        """Scores under a key, by item id."""
        return self._scores.get(key, {})

    def add(self, key: str, scores: Sequence[ItemScore]) -> None:
        """Enter scores, and save where it is time to."""
        self._scores.setdefault(key, {}).update((entry.id, entry) for entry in scores)
        self._unsaved += len(scores)
        late = self._clock() - self._saved_at >= self._seconds
        if late or (self._save_every is not None and self._unsaved >= self._save_every):
            self.save()

    def forget(self) -> None:
        """Drop all scores, which are kept elsewhere by now; they still count as scored."""
        self._forgotten, self._scores = len(self), {}

    def save(self) -> None:
        """Write a checkpoint, if anything is new."""
        if self._checkpoints is not None and self._unsaved:
            state = {
                "scores": {
                    key: [entry.to_json() for entry in entries.values()]
                    for key, entries in self._scores.items()
                },
                "forgotten": self._forgotten,
            }
            self._checkpoints.save(len(self), state)
        self._saved_at, self._unsaved = self._clock(), 0
