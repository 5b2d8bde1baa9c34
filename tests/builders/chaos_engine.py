"""A light engine that writes down its every move, so that a chaos run can be judged without the ledger.

For each GPU that it was granted it holds a lock on ``witness/NODE-INDEX.lock``, which the kernel lets go at
its death and not before, and appends lines to ``witness/NODE-INDEX.jsonl``: ``start`` (or ``collision`` where
somebody still had the lock), ``alive`` after each step, ``end``. It works through numbered steps, each
appended to ``steps/NAME.jsonl`` when it is done, and saves checkpoints through the engines' own store.

Environment: ``CHAOS_FOLDER``, ``CHAOS_NODE``, and what the agent tells every engine. SPEC.input: ``steps``,
``step_seconds``, ``checkpoint_every``, ``deaf`` (does not listen when it is told to stop).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engines.contract import Context, Outcome, Preempted

LOCK_PATIENCE = 20.0
"""Seconds that a GPU which somebody still uses is waited for; it is a broken invariant already."""


def run(context: Context) -> Outcome:
    """All steps from the last complete checkpoint on; ``Preempted`` after a checkpoint where told to stop."""
    fields = context.spec.input
    indices = [int(index) for index in os.environ.get("EMEP_GPU_INDICES", "").split(",") if index]
    with ExitStack() as stack:
        gpus = [stack.enter_context(Witness(index).held()) for index in indices]
        return _work(context, StepLog(context), gpus, dict(fields))


def _work(context: Context, log: StepLog, gpus: list[Witness], fields: dict[str, Any]) -> Outcome:
    context.checkpoints.claim()
    found = context.checkpoints.latest()
    first, steps = found.step if found else 0, int(fields["steps"])
    saved = first
    log.write("resume", first)
    for step in range(first + 1, steps + 1):
        if context.stop_requested() and not fields.get("deaf"):
            if step - 1 > saved:
                log.save(context, step - 1)
            raise Preempted(f"after step {step - 1}")
        began = time.time()
        _pause(context, float(fields["step_seconds"]), deaf=bool(fields.get("deaf")))
        log.write("step", step, seconds=time.time() - began)
        for gpu in gpus:
            gpu.write("alive")
        context.progress("steps", step, steps)
        if step % int(fields["checkpoint_every"]) == 0 or step == steps:
            log.save(context, step)
            saved = step
    log.write("finish", steps)
    epoch = int(os.environ.get("EMEP_LEASE_EPOCH", "0"))
    # Metrics of several ranks are reduced to one value where they agree.
    return Outcome(metrics={"epoch": epoch, "steps": steps}, resumed_from=found.step if found else None)


def _pause(context: Context, seconds: float, *, deaf: bool) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and (deaf or not context.stop_requested()):
        time.sleep(min(left, 0.1))


class _Lines:
    """A file of JSON lines; each is one write to its end, so several processes may share it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, line: dict[str, Any], *, sync: bool = False) -> None:
        """Write a line; ``sync`` waits until it is on the disk."""
        os.write(self._file, json.dumps(line).encode() + b"\n")
        if sync:
            os.fsync(self._file)


class StepLog:
    """The step log of one piece of work, shared by all its runs; ranks have one each."""

    def __init__(self, context: Context) -> None:
        name = Path(os.environ["EMEP_CHECKPOINT_URI"].removeprefix("file://")).name
        if context.world_size > 1:
            name += f".rank-{context.rank}"
        self._lines = _Lines(Path(os.environ["CHAOS_FOLDER"]) / "steps" / f"{name}.jsonl")
        self._run = {
            "job": os.environ.get("EMEP_JOB_ID", ""),
            "epoch": int(os.environ.get("EMEP_LEASE_EPOCH", "0")),
        }

    def write(self, kind: str, step: int, **more: Any) -> None:
        """Append a line."""
        self._lines.append({"kind": kind, "step": step, **self._run, "time": time.time(), **more}, sync=True)

    def save(self, context: Context, step: int) -> None:
        """A checkpoint, and a line once it is complete. Raises StaleEpochError as the store does."""
        context.checkpoints.save(step, {"done": step})
        self.write("checkpoint", step)


class Witness:
    """One GPU of this process: its lock and its file."""

    def __init__(self, index: int) -> None:
        self._folder = Path(os.environ["CHAOS_FOLDER"]) / "witness"
        self._name = f"{os.environ['CHAOS_NODE']}-{index}"
        self._lines = _Lines(self._folder / f"{self._name}.jsonl")
        self._who = {
            "node": os.environ["CHAOS_NODE"],
            "gpu": index,
            "pid": os.getpid(),
            "job": os.environ.get("EMEP_JOB_ID", ""),
            "allocation": os.environ.get("EMEP_ALLOCATION_ID", ""),
            "epoch": int(os.environ.get("EMEP_LEASE_EPOCH", "0")),
        }

    def write(self, kind: str, **more: Any) -> None:
        """Append a line; its first and last wait for the disk."""
        self._lines.append(
            {"kind": kind, **self._who, "time": time.time(), **more}, sync=kind in ("start", "end")
        )

    @contextmanager
    def held(self) -> Iterator[Witness]:
        """Hold the GPU; somebody who still holds it is written down, and waited for."""
        descriptor = os.open(self._folder / f"{self._name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _locked(descriptor):
                other = os.pread(descriptor, 500, 0).decode(errors="replace")
                self.write("collision", other=other)
                until = time.monotonic() + LOCK_PATIENCE
                while not _locked(descriptor) and time.monotonic() < until:
                    time.sleep(0.05)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(self._who).encode(), 0)
            self.write("start")
            try:
                yield self
            finally:
                self.write("end")
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
