"""One engine process, which the supervisor starts for one rank.

It runs as ``python -m engines.supervisor.child SPEC.json``. Messages go to the supervisor as JSON lines over
the pipe ``EMEP_CHILD_PIPE``; output of libraries stays on stdout and stderr. SIGTERM asks the engine to
checkpoint and end. When the supervisor dies, so does this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.artifacts import open_store, path_to_uri
from engines.checkpoint import Checkpoint, CheckpointStore, spec_digest
from engines.confinement import Confines, confine, refused_by_the_system
from engines.confinement.named import check_named_paths
from engines.contract import ENGINES, Context, EngineError, ExitCode, Preempted
from engines.supervisor.events import JUDGED_SIGNALS
from engines.supervisor.lease import number
from engines.supervisor.spec import load_spec
from engines.supervisor.stop_request import StopRequest

_PR_SET_PDEATHSIG = 1


class Messages:
    """The pipe to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message. A missing supervisor is no error: this process is about to be killed anyway."""
        try:
            with self._lock:
                self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
        except (BrokenPipeError, ValueError):
            pass


def checkpoint_uri(spec_path: Path) -> str:
    """The folder of checkpoints: ``EMEP_CHECKPOINT_URI``, else beside the SPEC."""
    return os.environ.get("EMEP_CHECKPOINT_URI") or path_to_uri(spec_path.absolute().parent / "checkpoints")


def main(arguments: list[str]) -> int:
    """Run the engine of the SPEC; returns the exit code."""
    # torch prints this warning about NVIDIA's package at every import; users of engines cannot act on it.
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    parent = int(os.environ["EMEP_SUPERVISOR_PID"])
    _die_with(parent)
    stop = StopRequest()
    signal.signal(signal.SIGTERM, stop.on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to judge
    signal.pthread_sigmask(signal.SIG_UNBLOCK, JUDGED_SIGNALS)
    messages = Messages(int(os.environ["EMEP_CHILD_PIPE"]))
    try:
        context = _context(Path(arguments[0]), stop, messages)
        outcome = ENGINES[context.spec.engine].load()(context)
    except Preempted as error:
        messages.send("preempted", message=str(error))
        return ExitCode.PREEMPTED
    except EngineError as error:
        _send_error(messages, error.code, error.message, error.file, error.field)
        return error.exit_code
    except Exception as error:
        if (outside := refused_by_the_system(error)) is not None:
            _send_error(messages, outside.code, outside.message, outside.file, outside.field)
            return outside.exit_code
        return _unexpected(messages, error)
    try:
        messages.send("outcome", outcome=asdict(outcome))
    except TypeError as error:
        _send_error(messages, "internal", f"the engine's outcome is no JSON: {error}", None, None)
        return ExitCode.FAILED
    return ExitCode.DONE


def _confine(path: Path) -> None:
    """Keep this process to what its job may read and write, before anything that a user named is opened."""
    confines = Confines.from_environment(os.environ, path.absolute().parent)
    if confines is not None:
        confine(confines)
        os.environ["EMEP_CHECKPOINT_URI"] = path_to_uri(confines.checkpoints)


def _context(path: Path, stop: StopRequest, messages: Messages) -> Context:
    spec = load_spec(path)
    _confine(path)
    check_named_paths(spec)
    rank, world = int(os.environ.get("EMEP_RANK", "0")), int(os.environ.get("EMEP_WORLD_SIZE", "1"))
    epoch = int(number(os.environ, "EMEP_LEASE_EPOCH", 0))
    job = os.environ.get("EMEP_JOB_ID", "")
    checkpoints = CheckpointStore(checkpoint_uri(path), spec_digest(spec), epoch=epoch, job=job)
    if world > 1:
        checkpoints = checkpoints.for_rank(rank)

    def saved(checkpoint: Checkpoint) -> None:
        time = datetime.now(UTC).isoformat()
        messages.send("checkpoint", step=checkpoint.step, uri=checkpoint.uri, time=time)

    checkpoints.on_save = saved
    return Context(
        spec=spec,
        artifacts=open_store(spec.output_uri),
        checkpoints=checkpoints,
        stop_requested=stop.is_set,
        progress=lambda what, done, total: messages.send("progress", what=what, done=done, total=total),
        say=lambda line: print(line, flush=True),  # noqa: T201 - the job's log
        rank=rank,
        world_size=world,
    )


def _unexpected(messages: Messages, error: Exception) -> int:
    traceback.print_exc()
    if type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch"):
        sentence = " ".join(str(error).split())[:500]
        _send_error(messages, "gpu_out_of_memory", f"out of GPU memory: {sentence}", None, None)
        return ExitCode.GPU_OUT_OF_MEMORY
    if isinstance(error, MemoryError):
        _send_error(messages, "out_of_memory", "out of memory", None, None)
        return ExitCode.FAILED
    sentence = " ".join(str(error).split())[:1000]
    _send_error(messages, "internal", f"{type(error).__name__}: {sentence}", None, None)
    return ExitCode.FAILED


def _send_error(messages: Messages, code: str, message: str, file: str | None, field: str | None) -> None:
    messages.send("error", code=code, message=message, file=file, field=field)


def _die_with(parent: int) -> None:
    """Make the kernel kill this process when the supervisor dies; only Linux can do that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ExitCode.FAILED)  # it died before the request was in place


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
