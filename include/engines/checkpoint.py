"""Checkpoints: folders ``step-NNNNNNNN/`` under one URI, complete once their manifest is there.

A step's files are written beside, the manifest last, and the folder renamed: what is visible is complete, and
a folder without a manifest does not exist. The manifest names the SPEC's digest (without ``device`` and
``chunked``, which may change between runs of one piece of work), the writer's epoch, the random state and
every file's SHA-256.

An older run never writes after a newer one: the file ``fence`` beside the steps holds the newest run's job
and epoch. A retry is another job with the same checkpoints and epochs of its own, so jobs are compared
first; their ids rise with time and compare as text.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engines.artifacts import canonical_json, digest_file, path_to_uri, uri_to_path, write_atomically
from engines.artifacts.folder import fsync_folder
from engines.contract import EngineError, Spec

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"
STATE = "state.json"
FENCE = "fence"
KEEP = 2
_STEP = re.compile(r"^step-(\d{8,})$")


class Fence(NamedTuple):
    """A run in the order of runs: a later job, or of one job a later epoch, is greater."""

    job: str
    epoch: int

    def __str__(self) -> str:
        return f"epoch {self.epoch} of job {self.job}" if self.job else f"epoch {self.epoch}"


class StaleEpochError(EngineError):
    """A newer run of the same work has taken over; this one must end without a trace."""

    def __init__(self, mine: Fence, newest: Fence, folder: Path) -> None:
        message = f"{mine} is over: {newest} writes to {folder} now"
        super().__init__(message, code="stale_epoch", file=str(folder), field="epoch")


@dataclass(frozen=True)
class Checkpoint:
    """One complete step."""

    step: int
    epoch: int
    folder: Path
    random_state: Any = None
    """JSON value, whatever the engine gave."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by name."""

    @property
    def uri(self) -> str:
        """``file:///.../step-NNNNNNNN``."""
        return path_to_uri(self.folder)

    def state(self) -> Any:
        """The JSON state that was saved with it, None where there was none."""
        path = self.folder / STATE
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that were saved with it, on the CPU."""
        from safetensors.torch import load_file

        path = self.folder / TENSORS
        return load_file(path) if path.exists() else {}


def spec_digest(spec: Spec) -> str:
    """SHA-256 of a SPEC without ``device`` and ``chunked``: the work itself, wherever it runs."""
    plain = asdict(spec)
    del plain["device"], plain["chunked"]
    return hashlib.sha256(canonical_json(plain)).hexdigest()


def checkpoint_seconds(default: float) -> float:
    """Seconds between two checkpoints that an engine saves by itself.

    ``EMEP_CHECKPOINT_SECONDS`` gives the job's ``checkpoint_interval``; without it this is ``default``.
    Raises BadInputError if it is not a number.
    """
    from engines.supervisor.lease import number

    return number(os.environ, "EMEP_CHECKPOINT_SECONDS", default)


class CheckpointStore:
    """The checkpoints of one piece of work.

    ``uri``: a folder (``file:///...``); ranks of one run use ``for_rank``. ``epoch`` and ``job``: the lease's
    fencing epoch and its job's id, 0 and empty outside a lease.
    """

    def __init__(self, uri: str, digest: str, *, epoch: int = 0, job: str = "", keep: int = KEEP) -> None:
        self.folder = uri_to_path(uri)
        self.uri = path_to_uri(self.folder)
        self.digest, self.epoch, self._keep = digest, epoch, keep
        self._fence_of_mine = Fence(job, epoch)
        self.last: Checkpoint | None = None
        """The last step written or found."""
        self.on_save: Callable[[Checkpoint], None] = lambda checkpoint: None
        """Told of every complete step; the supervisor's heartbeats pass it on."""

    def for_rank(self, rank: int) -> CheckpointStore:
        """The store of one rank of a run: a folder of its own below this one."""
        uri = f"{self.uri}/rank-{rank}"
        return CheckpointStore(
            uri, self.digest, epoch=self.epoch, job=self._fence_of_mine.job, keep=self._keep
        )

    def latest(self) -> Checkpoint | None:
        """The newest complete step of this very work; corrupt, unfinished and foreign ones do not count."""
        for step in sorted(self._steps(), reverse=True):
            found = self._load(step)
            if found is not None:
                self.last = found
                return found
        return None

    def save(
        self,
        step: int,
        state: Any = None,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        random_state: Any = None,
    ) -> Checkpoint:
        """Write a step and drop all but the last two. Raises StaleEpochError where a newer run has.

        ``state`` and ``random_state`` are JSON values. When this returns the step survives a power cut.
        """
        target = self.folder / f"step-{step:08d}"
        with self._fence():
            beside = self.folder / f".step-{uuid.uuid4().hex}"
            beside.mkdir()
            try:
                self._write(beside, step, state, tensors, random_state)
                if target.exists():
                    shutil.rmtree(target)
                beside.rename(target)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
            fsync_folder(self.folder)
            found = self._load(step)
            if found is None:
                raise EngineError(f"{target} does not read back as written", code="storage", file=str(target))
            self.last = found
            self.on_save(found)
            # Later steps are of work that was begun anew; of the earlier ones the last are kept.
            steps = sorted(self._steps())
            kept = [old for old in steps if old <= step][-self._keep :]
            for old in set(steps) - set(kept):
                shutil.rmtree(self.folder / f"step-{old:08d}", ignore_errors=True)
        return found

    def claim(self) -> None:
        """Raise the fence to this run before any work. Raises StaleEpochError where a newer one has."""
        with self._fence():
            pass

    def clear(self) -> None:
        """Remove all steps: the work is done. The fence stays."""
        for step in self._steps():
            shutil.rmtree(self.folder / f"step-{step:08d}", ignore_errors=True)
        self.last = None

    def _steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(match[1]) for entry in os.listdir(self.folder) if (match := _STEP.match(entry))]

    def _load(self, step: int) -> Checkpoint | None:
        folder = self.folder / f"step-{step:08d}"
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            files = dict(manifest["files"])
            if manifest["spec_digest"] != self.digest or manifest["step"] != step:
                return None
            if any(digest_file(folder / name)[0] != digest for name, digest in files.items()):
                return None
            return Checkpoint(step, int(manifest["epoch"]), folder, manifest.get("random_state"), files)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(
        self, folder: Path, step: int, state: Any, tensors: Mapping[str, Tensor] | None, random_state: Any
    ) -> None:
        if tensors:
            from safetensors.torch import save_file

            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
            with (folder / TENSORS).open("rb") as file:
                os.fsync(file.fileno())
        if state is not None:
            write_atomically(folder / STATE, canonical_json(state))
        files = {entry.name: digest_file(entry)[0] for entry in sorted(folder.iterdir())}
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "step": step,
            "epoch": self.epoch,
            "spec_digest": self.digest,
            "random_state": random_state,
            "files": files,
            "time": datetime.now(UTC).isoformat(),
        }
        write_atomically(folder / MANIFEST, canonical_json(manifest))

    @contextmanager
    def _fence(self) -> Iterator[None]:
        """Hold the folder's lock with the fence at this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            newest = self._newest()
            if newest > self._fence_of_mine:
                raise StaleEpochError(self._fence_of_mine, newest, self.folder)
            if newest < self._fence_of_mine:
                write_atomically(self.folder / FENCE, canonical_json(self._fence_of_mine._asdict()))
            yield

    def _newest(self) -> Fence:
        try:
            return Fence(**json.loads((self.folder / FENCE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Fence("", 0)
