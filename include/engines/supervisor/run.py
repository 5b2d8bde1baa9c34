"""``emep-engine run SPEC.json``: the supervisor of one engine run. It computes nothing and imports no torch.

The engine runs in child processes. The supervisor renews the lease, relays directives, writes the Result and
reports the end. Everything that happens (a message, an end, a directive, a signal) is an event in one queue,
taken by the main thread: the state below has one writer.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.contract import ENGINES, EngineError, ExitCode
from engines.supervisor.events import Events
from engines.supervisor.lease import Lease, LeaseSettings, Order, current_environment, number
from engines.supervisor.progress import Progress
from engines.supervisor.ranks import Rank, split_environments, start_ranks
from engines.supervisor.result import (
    leave_message,
    make_error,
    make_result,
    reduce_outcomes,
    result_path,
    write_result,
)
from engines.supervisor.scratch import Scratch, hide_from_own_user
from engines.supervisor.spec import check_spec

GRACE_SECONDS = 120.0
"""Default seconds for a checkpoint; ``EMEP_GRACE_SECONDS`` overrides."""
LEAVE_SECONDS = 30.0
"""How long an engine that has sent its outcome may take to end; then it is killed, and the outcome stands."""


@dataclass
class _Stopping:
    """Told to end: when it is killed, and why."""

    deadline: float
    reason: str


def supervise(spec_path: Path, environment: Mapping[str, str] | None = None) -> int:
    """Run a SPEC to its end; returns the exit code. Never raises for what the engine or the input does."""
    if os.environ.get("EMEP_RUN_AS"):
        hide_from_own_user()
    return _Supervisor(spec_path, environment or current_environment()).run()


class _Supervisor:
    def __init__(self, spec_path: Path, environment: Mapping[str, str]) -> None:
        self.spec_path, self.environment = spec_path, environment
        self.engine: str | None = None
        self.events = Events()
        self.ranks: list[Rank] = []
        self.checkpoint: dict[str, Any] | None = None
        self.stopping: _Stopping | None = None
        self.aborted: str | None = None
        self.failed: Rank | None = None
        self.killed_late = False
        self.leave_by: float | None = None
        self.grace = GRACE_SECONDS
        self.progress = Progress(sys.stdout)
        self.lease: Lease | None = None
        self.scratch = Scratch()
        self.started = time.monotonic()

    def run(self) -> int:
        with self.events.signals():
            return self._run()

    def _run(self) -> int:
        try:
            self.grace = number(self.environment, "EMEP_GRACE_SECONDS", GRACE_SECONDS)
            settings = LeaseSettings.from_environment(self.environment)
        except EngineError as error:
            return self._finish(error.exit_code, error=_plain(error))
        if settings is not None:
            self.lease = Lease(settings, self._report, lambda order: self.events.put("order", order), _say)
        try:
            code = self._engine()
        except Exception as error:
            traceback.print_exc()
            problem = make_error("internal", f"the supervisor failed: {type(error).__name__}: {error}")
            for rank in self.ranks:
                rank.kill()
            self._renew_lease()
            code = self._finish(ExitCode.FAILED, error=problem)
        finally:
            for rank in self.ranks:
                if rank.running:
                    rank.kill()
            self.scratch.remove()
            if self.lease is not None:
                self.lease.stop()
        return code

    def _engine(self) -> int:
        try:
            engine = check_spec(self.spec_path)
        except EngineError as error:
            self._renew_lease()
            return self._finish(error.exit_code, error=_plain(error))
        self.engine = engine
        environments = split_environments(
            {**self.environment, **self.scratch.make(self.environment)}, parallel=ENGINES[engine].parallel
        )
        # The GPUs are idle until here: what else there is to begin, and to import, comes after.
        self.ranks = start_ranks(
            self.spec_path,
            environments,
            lambda rank, message: self.events.put("message", (rank, message)),
            lambda rank: self.events.put("exit", rank),
        )
        self._renew_lease()
        self._track("started", {"engine": engine, "processes": len(environments)})
        import_module("engines.artifacts")  # what writing the Result needs
        while any(rank.running for rank in self.ranks):
            event = self.events.get(timeout=self._patience())
            if event is None:
                self._past_deadline()
                continue
            kind, value = event
            getattr(self, f"_{kind}")(value)
        self.progress.close()
        return self._end()

    def _renew_lease(self) -> None:
        if self.lease is not None:
            self.lease.start()

    # Events.

    def _message(self, value: tuple[Rank, dict[str, Any]]) -> None:
        rank, message = value
        kind = message.pop("kind", "")
        if kind == "progress":
            rank.progress = message
            self.progress.show(rank.number, len(self.ranks), message)
        elif kind == "checkpoint":
            self.checkpoint = message
            if self.lease is not None:
                self.lease.beat_soon()
        elif kind == "outcome":
            rank.outcome = message["outcome"]
            if all(other.outcome is not None for other in self.ranks):
                self.leave_by = time.monotonic() + LEAVE_SECONDS
        elif kind == "error":
            rank.error = message
        elif kind == "preempted":
            rank.preempted = message.get("message", "")

    def _exit(self, rank: Rank) -> None:
        rank.exit_code = rank.process.returncode
        # An outcome that was sent stands, whatever ends the process that has nothing left to do.
        fine = rank.outcome is not None or rank.exit_code in {ExitCode.DONE, ExitCode.PREEMPTED}
        if not fine and self.failed is None and not self.aborted and not self.killed_late:
            self.failed = rank
            if any(other.running for other in self.ranks):
                self._stop(f"rank {rank.number} failed", self.grace)

    def _order(self, order: Order) -> None:
        if order.directive == "abort":
            self._abort(order.reason)
        elif order.directive == "checkpoint_and_exit":
            self._stop(order.reason, self.grace if order.grace_seconds is None else order.grace_seconds)
        else:
            _say(f"directive '{order.directive}' is unknown; going on")

    def _signal(self, number: int) -> None:
        if self.stopping is not None and number == signal.SIGINT:
            self._abort("interrupted twice")
        else:
            self._stop(f"received {signal.Signals(number).name}", self.grace)

    # Ends.

    def _stop(self, reason: str, grace: float) -> None:
        """Ask the engine to checkpoint and end. When called again, only a nearer deadline counts."""
        deadline = time.monotonic() + grace
        if self.stopping is None:
            _say(f"{reason}: checkpoint and exit within {grace:g} s")
            self.stopping = _Stopping(deadline, reason)
            for rank in self.ranks:
                if rank.running:
                    rank.terminate()
        else:
            self.stopping.deadline = min(self.stopping.deadline, deadline)

    def _abort(self, reason: str) -> None:
        if self.aborted is None:
            _say(f"{reason}: ending at once")
            self.aborted = reason
        for rank in self.ranks:
            if rank.running:
                rank.kill()

    def _patience(self) -> float | None:
        ends = [self.leave_by] if self.leave_by is not None else []
        ends += [self.stopping.deadline] if self.stopping is not None else []
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _past_deadline(self) -> None:
        if self.leave_by is not None and time.monotonic() >= self.leave_by:
            _say("the engine has sent its outcome and does not end: killing it")
            self.leave_by = time.monotonic() + 1.0
            for rank in self.ranks:
                if rank.running:
                    rank.kill()
        if self.stopping is not None and time.monotonic() >= self.stopping.deadline:
            if not self.killed_late:
                _say("the grace period is over: killing the engine")
            self.killed_late = True
            self.stopping.deadline = time.monotonic() + 1.0
            for rank in self.ranks:
                if rank.running:
                    rank.kill()

    def _end(self) -> int:
        outcomes = [rank.outcome for rank in self.ranks if rank.outcome is not None]
        if len(outcomes) == len(self.ranks):
            return self._finish(ExitCode.DONE, outcome=reduce_outcomes(outcomes))
        if self.aborted is not None:
            return self._finish(128 + signal.SIGKILL, error=make_error("aborted", self.aborted))
        if self.failed is not None:
            code, error = _judge(self.failed)
            return self._finish(code, error=error)
        if self.killed_late or any(rank.exit_code == ExitCode.PREEMPTED for rank in self.ranks):
            reason = self.stopping.reason if self.stopping else "the engine was told to stop"
            if self.killed_late:
                reason += "; killed after the grace period"
            return self._finish(ExitCode.PREEMPTED, error=make_error("preempted", reason))
        silent = next(rank for rank in self.ranks if rank.outcome is None)
        message = f"rank {silent.number} ended without a result"
        return self._finish(ExitCode.FAILED, error=make_error("no_result", message))

    def _finish(
        self, exit_code: int, *, outcome: dict[str, Any] | None = None, error: Mapping[str, Any] | None = None
    ) -> int:
        seconds = time.monotonic() - self.started
        code, result = make_result(
            self.engine,
            exit_code,
            seconds=seconds,
            outcome=outcome,
            error=error,
            epoch=self.lease.settings.epoch if self.lease is not None else None,
        )
        found = result["error"]
        if found:
            _say(f"{result['status']}: {found['message']}")
        path, written = result_path(self.environment, self.spec_path), True
        try:
            write_result(path, result)
        except OSError as problem:
            _say(f"cannot write the result to {path}: {problem.strerror}")
            written = False
        if message := self.environment.get("EMEP_TERMINATION_LOG"):
            leave_message(Path(message), result)
        self._track("finished", {"status": result["status"], "metrics": result["metrics"], "error": found})
        told = self.lease is not None and self.lease.complete(
            code, result, found["message"] if found else None
        )
        # A disk that takes no file is no reason to lose what the control plane has got.
        return int(code) if written or told else int(code or ExitCode.FAILED)

    # Others.

    def _report(self) -> dict[str, Any]:
        """The heartbeat's body; read by the lease's thread, each field written in one step."""
        shown = [rank.progress for rank in self.ranks if rank.progress]
        progress = None
        if shown:
            done, total = sum(entry["done"] for entry in shown), sum(entry["total"] for entry in shown)
            progress = {"what": shown[0]["what"], "done": done, "total": total}
        return {"checkpoint": self.checkpoint, "progress": progress}

    def _track(self, kind: str, data: dict[str, Any]) -> None:
        uri = self.environment.get("EMEP_TRACKER_URI")
        if not uri:
            return
        from engines.tracking import Event, open_tracker

        run = self.environment.get("EMEP_ALLOCATION_ID") or str(self.spec_path.absolute())
        epoch = self.environment.get("EMEP_LEASE_EPOCH", "0")
        try:
            open_tracker(uri).log(Event(f"{run}:{epoch}:{kind}", run, kind, data))
        except (EngineError, OSError) as error:
            _say(f"cannot reach the tracker {uri}: {error}")


def _judge(rank: Rank) -> tuple[int, dict[str, Any]]:
    """Exit code and error of a rank that failed."""
    code = rank.exit_code if rank.exit_code is not None else ExitCode.FAILED
    if rank.error is not None:
        known = {int(entry) for entry in ExitCode}
        return (code if code in known and code else ExitCode.FAILED), rank.error
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (often: out of memory)" if -code == signal.SIGKILL else ""
        # As a shell counts it, so that the agent can tell a kill from a failure of the engine's own.
        return 128 - code, make_error("killed", f"rank {rank.number} was ended by {name}{hint}")
    return ExitCode.FAILED, make_error("crashed", f"rank {rank.number} ended with exit code {code}")


def _plain(error: EngineError) -> dict[str, str | None]:
    return make_error(error.code, error.message, file=error.file, field=error.field)


def _say(text: str) -> None:
    sys.stderr.write(f"emep-engine[{os.getpid()}]: {text}\n")
    sys.stderr.flush()
