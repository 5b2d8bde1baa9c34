"""An engine that does what its SPEC says, step by step: checkpoints, waits, fails.

For the supervisor's tests.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from typing import Any

from engines.contract import BadInputError, Context, Outcome, Preempted


def run(context: Context) -> Outcome:
    """Carry out ``input.steps``, one after the other; a checkpoint after each. Others: see ``_special``."""
    fields = context.spec.input
    context.artifacts.put_json(
        f"started-{context.rank}-{os.getpid()}.json",
        {
            "pid": os.getpid(),
            "rank": context.rank,
            "world": context.world_size,
            "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "indices": os.environ.get("EMEP_GPU_INDICES"),
            "token": "EMEP_LEASE_TOKEN" in os.environ,
        },
    )
    found = context.checkpoints.latest()
    first = found.step if found else 0
    steps = int(fields.get("steps", 3))
    for step in range(first, steps):
        context.progress("steps", step, steps)
        if context.stop_requested() and not (fields.get("deaf") or fields.get("finish")):
            context.checkpoints.save(step, {"step": step})
            raise Preempted(f"after step {step}")
        if step == fields.get("at", steps - 1) and context.rank == fields.get("rank", context.rank):
            _special(context, fields)
        context.checkpoints.save(step + 1, {"step": step + 1})
    context.progress("steps", steps, steps)
    metrics: dict[str, Any] = {
        "rank": context.rank,
        "counts": {"steps": steps - first, f"rank{context.rank}": 1},
    }
    return Outcome(
        metrics={**metrics, **fields.get("metrics", {})}, resumed_from=found.step if found else None
    )


def _special(context: Context, fields: Any) -> None:
    kind = fields.get("then")
    if kind == "wait":
        _wait(context, fields)
    if kind == "bad_input":
        raise BadInputError("recipe.yaml: weight: 7 is too heavy", file="recipe.yaml", field="weight")
    if kind == "crash":
        raise RuntimeError("boiler room on fire")
    if kind == "nan":
        fields["metrics"]["loss"] = float("nan")
    if kind == "gpu_out_of_memory":
        import torch

        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "leave":
        os._exit(0)
    if kind == "leave_a_fork":
        _leave_a_fork(context)
    if kind in _HARMLESS:
        _HARMLESS[kind](context)


def _linger(context: Context) -> None:
    """The outcome is sent, and the interpreter takes its time to end; a signal ends it, as it does then."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    context.artifacts.put_json(f"leaving-{context.rank}.json", {"pid": os.getpid()})
    while True:
        signal.pause()


def _leave_a_fork(context: Context) -> None:
    """A process that outlives this one with its pipes, as a library's worker may."""
    if pid := os.fork():
        context.artifacts.put_json("fork.json", {"pid": pid})
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    while True:
        signal.pause()


def _wait(context: Context, fields: Any) -> None:
    """Until told to stop (for ever: ``deaf``); then on (``finish``), or a checkpoint and the end."""
    while fields.get("deaf") or not context.stop_requested():
        time.sleep(0.01)
    if not fields.get("finish"):
        context.checkpoints.save(fields.get("at", 1), {"saved": True})
        raise Preempted("while it waited")


_HARMLESS = {
    "linger": lambda context: atexit.register(_linger, context),
    "chatter": lambda context: print("a line of a library", flush=True),
}
