"""An engine of steps for the tests of the loop: it leaves a witness of each, and ends as it is told.

Input: ``steps``, ``step_seconds``, ``witness`` (a file of JSON lines), ``until`` (a file: the last step waits
for it), ``ends`` (what each run does instead of its last step, one after the other: an exit status, 137 for
being killed; 0 or nothing left: it ends well).
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from engines.contract import BadInputError, Context, EngineError, ExitCode, Outcome, Preempted


class Witness:
    """Lines that only ever come to it, each written at once."""

    def __init__(self, path: str) -> None:
        self.path = Path(path) if path else None

    def say(self, what: str, **more: Any) -> None:
        if self.path is None:
            return
        line = {"what": what, "pid": os.getpid(), "epoch": os.environ.get("EMEP_LEASE_EPOCH"), **more}
        line |= {"at": time.time(), "job": os.environ.get("EMEP_JOB_ID")}
        line |= {"gpus": os.environ.get("EMEP_GPU_INDICES"), "chunked": more.get("chunked", False)}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def starts(self) -> int:
        """How often the engine has been started, this time included."""
        if self.path is None:
            return 1
        return sum(json.loads(line)["what"] == "start" for line in self.path.read_text().splitlines())


def run(context: Context) -> Outcome:
    """Carry out the steps that no checkpoint has yet."""
    fields = context.spec.input
    witness = Witness(fields.get("witness", ""))
    found = context.checkpoints.latest()
    first, steps = found.step if found else 0, int(fields.get("steps", 1))
    witness.say("start", step=first)
    for step in range(first, steps):
        if step == steps - 1:
            _end_early(list(fields.get("ends", ())), witness.starts())
        if _told_to_stop(context, fields, last=step == steps - 1):
            context.checkpoints.save(step, {"step": step})
            witness.say("yield", step=step)
            raise Preempted(f"before step {step}")
        context.checkpoints.save(step + 1, {"step": step + 1})
        witness.say("step", step=step)
        context.progress("steps", step + 1, steps)
    witness.say("end", step=steps)
    return Outcome(metrics={"steps": steps - first}, resumed_from=found.step if found else None)


def _told_to_stop(context: Context, fields: Any, *, last: bool) -> bool:
    """Work on one step; True if told to stop before it was done."""
    done_at = time.monotonic() + float(fields.get("step_seconds", 0.0))
    wanted = Path(fields["until"]) if last and fields.get("until") else None
    while not context.stop_requested():
        if time.monotonic() >= done_at and (wanted is None or wanted.exists()):
            return False
        time.sleep(0.02)
    return True


def _end_early(ends: list[int], start: int) -> None:
    """What this run does instead of its last step."""
    status = int(ends[start - 1]) if start <= len(ends) else 0
    if status == 137:
        os.kill(os.getpid(), signal.SIGKILL)
    if status == ExitCode.BAD_INPUT:
        raise BadInputError("input: this can never work", field="input")
    if status:
        raise EngineError(f"told to end with {status}", exit_code=ExitCode(status))
