"""One run from its order to its reported end: starts or adopts it, ships its log, stops and reports it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from emep.agent.environment import run_marks
from emep.agent.folders import Key, RunFolder
from emep.agent.process import ProcessIdentity, kill_members
from emep.agent.shipping import LogShipper
from emep.client import AsyncEmepClient, EmepApiError, EmepConnectionError, calls, lease_token
from emep.wire.allocations import Completion
from emep.wire.base import Directive
from emep.wire.nodes import StartOrder

log = logging.getLogger(__name__)

KILLED_FROM = 128
"""Exit statuses above are of signals, as a shell counts them."""
KILLED = KILLED_FROM + signal.SIGKILL
NOT_STARTED = 127
BAD_INPUT = 65
"""The exit status that engines use for errors which a repetition does not mend."""
_WRAPPER = Path(__file__).with_name("wrapper.py")
_RESULT_CODES = {"done": 0, "preempted": 75}
_LOG_PATIENCE = 30.0
"""Seconds that the rest of a log may delay the report of the end."""


@dataclass(frozen=True)
class Launch:
    """The inputs of a start beside the order."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    run_as: str | None = None
    """The user to start it as, as the wrapper takes it; None: the agent's own."""


class Run:
    """Watches one run. ``listed`` says whether the agent's poll must name it as running on this node."""

    def __init__(self, order: StartOrder, folder: RunFolder, client: AsyncEmepClient) -> None:
        self.order, self.folder = order, folder
        self._client = client.as_caller(lease_token(order.lease_token))
        self._marks = run_marks(order, str(folder.result))
        self._started = asyncio.Event()
        self._claim: ProcessIdentity | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._note: str | None = None
        self.listed = True
        self.let_go = asyncio.Event()
        """Set once no process of the run is left: other runs may use its GPUs while its end is reported."""
        self.gone = asyncio.Event()
        """Set once no process of the run is left and its end was reported, or could not be."""

    @property
    def key(self) -> Key:
        """(allocation, epoch)."""
        return self.order.allocation_id, self.order.epoch

    @property
    def session(self) -> int | None:
        """The session of the run's processes, once it has one."""
        return self._claim.pid if self._claim else None

    # --- its life -------------------------------------------------------------------------------------------

    async def start(self, launch: Launch) -> None:
        """Start the run (nothing happens if another wrapper has claimed it), then watch it to its end."""
        problem = await self._spawn(launch)
        if problem is None and self.folder.claim() is None:
            problem = "the engine did not start on this node; its log says why"
        await self._watch(problem)

    async def adopt(self) -> None:
        """Watch a run that an earlier agent started, alive or already over."""
        await self._watch(None)

    async def refuse(self, sentence: str) -> None:
        """Report an order that cannot be carried out here."""
        with self.folder.log.open("a", encoding="utf-8") as file:
            file.write(f"emep agent: {sentence}\n")
        await self._watch(sentence)

    async def _spawn(self, launch: Launch) -> str | None:
        """Start the wrapper and wait until it is ready; returns the error, if any, as a sentence."""
        reader, writer = os.pipe()
        try:
            self._child = self._start_wrapper(launch, writer)
        except OSError as error:
            os.close(reader)
            return f"the engine could not be started on this node: {error}"
        finally:
            os.close(writer)
        try:
            # Ends when the wrapper is ready, or exits (it then has lost the run, or never had it).
            await asyncio.to_thread(os.read, reader, 16)
        finally:
            os.close(reader)
        return None

    def _start_wrapper(self, launch: Launch, ready: int) -> subprocess.Popen[bytes]:
        wrapper = [sys.executable, "-I", "-S", str(_WRAPPER), str(self.folder.path), str(ready)]
        wrapper += ["--as", launch.run_as, "--"] if launch.run_as else ["--"]
        with self.folder.log.open("ab") as output:
            return subprocess.Popen(
                [*wrapper, *launch.command, "run", str(self.folder.spec)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder.work,
                env=dict(launch.environment),
                start_new_session=True,
                pass_fds=(ready,),
            )

    async def _watch(self, problem: str | None) -> None:
        claim = self.folder.claim()
        # A wrapper that is gone already may have left its pid, and so its session's number, to a stranger.
        self._claim = claim if claim is not None and claim.alive() else None
        self._started.set()
        shipper = LogShipper(self._client, self.order.allocation_id, self.folder)
        shipping = asyncio.create_task(shipper.run())
        try:
            if self._claim is not None:
                await self._claim.wait()
            await self._nothing_left()
            self.let_go.set()
            if self._child is not None:
                self._child.wait()
            shipper.finish()
            await asyncio.wait([shipping], timeout=_LOG_PATIENCE)
            await self._report(problem)
            # What could not be shipped in that time still is, if the API comes back.
            await shipping
            self.folder.set_done(self.exit_code(problem))
        finally:
            shipping.cancel()
            if self._stop_task is not None:
                self._stop_task.cancel()
            self.listed = False
            self.let_go.set()
            self.gone.set()

    async def _nothing_left(self) -> None:
        """Return once no process of the run is left; until then its GPUs must not be offered."""
        while not await kill_members(self.session, self._marks):
            log.warning("%s: processes of epoch %d cannot be killed yet", *self.key)

    # --- its end --------------------------------------------------------------------------------------------

    def exit_code(self, problem: str | None = None) -> int:
        """The exit status that the wrapper recorded; without one, that of the Result; else 137.

        It is 127, a shell's status for a command that cannot be run, if this node could not carry out the
        order. If a signal ended the supervisor after it had written a Result that says done, the Result
        counts.
        """
        if problem is not None:
            return NOT_STARTED
        written, result = self.folder.exit_code(), self._result() or {}
        if written is not None and not (written > KILLED_FROM and result.get("status") == "done"):
            return written
        own = result.get("exit_code", _RESULT_CODES.get(str(result.get("status"))))
        return own if isinstance(own, int) and not isinstance(own, bool) and 0 <= own <= 255 else KILLED

    def _result(self) -> dict[str, Any] | None:
        """The Result of this epoch; one that names another epoch is ignored."""
        result = self.folder.result_document()
        return result if result is None or result.get("epoch", self.order.epoch) == self.order.epoch else None

    def _completion(self, problem: str | None) -> Completion:
        code, result = self.exit_code(problem), self._result()
        message = problem or (self._note if code else None)
        if message is None and code > 128 and result is None:
            message = f"the supervisor ended by {_signal_name(code - 128)} and left no result"
        if message is None and code and result is None:
            message = f"the supervisor ended with exit status {code} and left no result"
        try:
            return Completion(
                epoch=self.order.epoch,
                exit_code=code,
                result=result,
                message=message[:4096] if message else None,
            )
        except ValidationError as error:
            return self._without_result(error.errors()[0]["msg"].removeprefix("Value error, "))

    def _without_result(self, why: str) -> Completion:
        """The end of a run whose Result the ledger can never take."""
        message = f"the Result in {self.folder.result.name} is refused: {why}"
        return Completion(epoch=self.order.epoch, exit_code=BAD_INPUT, message=message[:4096])

    async def _report(self, problem: str | None) -> None:
        """Post the end until the API answers. The supervisor may have posted it before; that is harmless."""
        completion, pause = self._completion(problem), 0.5
        log.info("%s (epoch %d) ended with exit status %d", *self.key, completion.exit_code)
        while True:
            try:
                await self._client.raw(calls.complete(self.order.allocation_id, completion))
                break
            except EmepApiError as error:
                if error.status in (400, 413, 422) and completion.result is not None:
                    completion = self._without_result(str(error))
                    continue
                if error.status < 500 and error.status not in (408, 425, 429):
                    # An old epoch, a lease that ended: its job has gone on without this run.
                    log.info("%s: the end of epoch %d was not taken: %s", *self.key, error)
                    break
                log.warning("%s: the end could not be reported: %s; trying again", self.key[0], error)
            except EmepConnectionError as error:
                log.warning("%s: the end could not be reported: %s; trying again", self.key[0], error)
            self.listed = False
            self.gone.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, 10.0)
        self.listed = False
        self.gone.set()

    # --- stopping it ----------------------------------------------------------------------------------------

    def stop(self, directive: Directive, grace_seconds: float, note: str | None = None) -> bool:
        """Carry out a stop order; False if the same or a stricter one is being carried out already.

        ``checkpoint_and_exit``: SIGTERM to the supervisor, SIGKILL to all of it after the grace. ``abort``:
        SIGKILL at once. ``note`` goes along with the report of the end.
        """
        if directive is Directive.CONTINUE:
            return False
        grace = 0.0 if directive is Directive.ABORT else max(0.0, grace_seconds)
        deadline = time.monotonic() + grace
        # Deadlines of repeated orders jitter by the time they travel; only a clearly earlier one counts.
        if self._deadline is not None and deadline > self._deadline - 1.0:
            return False
        first, self._deadline, self._note = self._deadline is None, deadline, note or self._note
        if self._stop_task is not None:
            self._stop_task.cancel()
        self._stop_task = asyncio.create_task(self._stop(ask=first and grace > 0))
        return True

    async def _stop(self, *, ask: bool) -> None:
        log.info("%s: epoch %d is told to %s", *self.key, "checkpoint and end" if ask else "end now")
        assert self._deadline is not None  # noqa: S101 - set by the only caller
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await self._started.wait()
                if ask and (supervisor := self.folder.supervisor()) is not None:
                    supervisor.send(signal.SIGTERM)
                await self.gone.wait()
        if not self.gone.is_set():
            await kill_members(self.session, self._marks)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(order: StartOrder) -> str:
    """An order in a few words, for the log."""
    gpus = ",".join(str(gpu.index) for gpu in order.gpus)
    what = f"{order.spec.get('engine', 'work')} on " + (f"GPU {gpus}" if gpus else "the CPU")
    return f"{what} [{labels(order)}]"


def labels(order: StartOrder) -> str:
    """The ids by which a log line can be matched with the job's lines on other machines."""
    found = (
        ("trace_id", order.trace_id),
        ("experiment_id", order.experiment_id),
        ("job_type", order.job_type),
    )
    return " ".join([f"job_id={order.job_id}", *(f"{name}={value}" for name, value in found if value)])
