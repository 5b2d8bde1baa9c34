"""The trigger that follows a job through its whole life (docs/architecture.md).

It is level-triggered: the ledger's row alone decides, so a restarted triggerer repeats nothing. A success
ends here, without a worker (`TaskSuccessEvent`), because the executor's late report can wrongly fail a worker
that resumes too soon after a deferral. A failure resumes on a worker, which reports the reason, and no sooner
than 20 s after the deferral.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from emep.results.summary import summary
from emep.triggers.log_stream import LogStream
from emep.triggers.outcome import Outcome, outcome_of
from emep.triggers.run_note import REFUSED, write_note_async
from emep.triggers.shown_lines import log_files, logger_of, shown
from emep.triggers.waiting import JobNews

if TYPE_CHECKING:
    from emep.hooks.job_watch import Hub, Subscription
    from emep.wire.jobs import JobView

EARLIEST_WORKER_LEG = 20.0
"""Seconds after the deferral before which no worker leg may come."""
LOG_PAUSES = (1.0, 10.0)
"""Shortest and longest pause between two reads of a log, in seconds; silence makes it longer."""
LAST_LINES_WAIT = 5.0
"""Seconds for the last lines of a job that has ended."""
READ_AGAIN = 300.0
"""Seconds without news after which the job is read all the same: no defect of a watch may hold a task for
ever."""
EXPLAIN_EVERY = 60.0
"""Seconds between two looks at why a job waits. All triggers look at the same time, and share one call."""
EXPLAIN_AGAIN = 5.0
"""Seconds after one look before the next, whatever the ledger says meanwhile."""
NOTE_SECONDS = 20.0
"""How long a success may wait for the run's note."""
POSITION_EVERY = 60.0
POSITION_KEY = "emep_log_position"


class JobTrigger(BaseTrigger):
    """Waits for one job of the ledger to end.

    ``deferred_at`` is seconds since the Unix epoch; ``said`` is what the worker has said of the job already.
    ``return_field`` is the part of the Result that becomes the XCom (``metrics.batches``; empty: all of it),
    ``if_empty`` what stands in for an empty one. ``mapped`` records the value's length, for tasks that are
    mapped over it. ``worker_end`` sends successes through the worker as well, for what only a worker can do.
    ``run_note`` writes the metrics as the run's note too.
    """

    def __init__(
        self,
        *,
        job_id: str,
        conn_id: str,
        deferred_at: float,
        log_position: dict[str, Any] | None = None,
        said: dict[str, Any] | None = None,
        return_field: str = "",
        if_empty: Any = None,
        push_result: bool = True,
        mapped: bool = False,
        worker_end: bool = False,
        run_note: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_id = job_id
        self.conn_id = conn_id
        self.deferred_at = deferred_at
        self.log_position = log_position
        self.said = said
        self.return_field = return_field
        self.if_empty = if_empty
        self.push_result = push_result
        self.mapped = mapped
        self.worker_end = worker_end
        self.run_note = run_note
        self._stream = LogStream.at(log_position)
        self._before: list[Path] = []
        """Log files of triggerers that have shown some of the job's log before this one."""
        self._news = JobNews(said)
        self._reason_code: str | None = None
        """Of the last reason that was explained; None: none was."""
        self._explaining: asyncio.Task[None] | None = None
        self._looked_at = time.time() - EXPLAIN_AGAIN
        self._ended = False
        self._position_kept = time.monotonic()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, from which a triggerer makes the trigger anew."""
        names = (
            "job_id",
            "conn_id",
            "deferred_at",
            "log_position",
            "said",
            "return_field",
            "if_empty",
            "push_result",
            "mapped",
            "worker_end",
            "run_note",
        )
        return "emep.triggers.job.JobTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Follow the job to its end, then fire once."""
        job = await self._ended_job()
        self._ended = True
        outcome = outcome_of(job, self.return_field, self.if_empty)
        if outcome.succeeded and not self.worker_end and await self._push(outcome):
            await self._show_result(job)
            yield TaskSuccessEvent()
            return
        await asyncio.sleep(max(0.0, self.deferred_at + EARLIEST_WORKER_LEG - time.time()))
        yield TriggerEvent({"job": job.model_dump(mode="json")})  # type: ignore[no-untyped-call]

    async def _ended_job(self) -> JobView:
        """Wait for the job's end and return the job. Errors on the way are logged and tried again."""
        await self._resume_position()
        while True:
            try:
                from emep.hooks.job_watch import Hub

                hub = await Hub.get(self.conn_id)
                async with hub.subscribe(self.job_id) as subscription:
                    await hub.watching()
                    return await self._follow(hub, subscription)
            except Exception as error:
                if _gone(error):
                    raise
                self.log.warning("Job %s cannot be followed (%s); trying again", self.job_id, error)
                await asyncio.sleep(5.0)
            finally:
                self._end_explaining()

    async def _follow(self, hub: Hub, subscription: Subscription) -> JobView:
        from emep.wire.base import ENDED_STATES

        pause = LOG_PAUSES[0]
        job = await hub.job(self.job_id)
        known_at = time.monotonic()
        while True:
            job = subscription.job or job
            self._say(hub, job)
            if job.state in ENDED_STATES:
                await self._last_lines(hub, job)
                return job
            await self.act(hub, job)
            pause = LOG_PAUSES[0] if await self._read_log(hub, job) else min(LOG_PAUSES[1], pause * 1.5)
            await self._keep_position()
            reading = job.started_at is not None and not self._stream.complete
            rest = self._until_explained(job) if job.state.value == "pending" else 60.0
            if await subscription.changed(pause if reading else min(rest, READ_AGAIN)):
                known_at = time.monotonic()
            elif time.monotonic() - known_at < READ_AGAIN:
                continue
            else:
                subscription.job = None
            if subscription.job is None:
                job = await hub.job(self.job_id)
                known_at = time.monotonic()

    async def act(self, hub: Hub, job: JobView) -> None:
        """Start or stop the job's work as its state requires; nothing to do here, where agents run the work.

        It is called repeatedly with the same state, so it must not repeat what it has done.
        """

    def _say(self, hub: Hub, job: JobView) -> None:
        """What the task's log does not say yet of the job's state, or of why it waits."""
        if job.state.value != "pending":
            self._end_explaining()
            self._reason_code = None
            self._write(self._news.of_state(job))
        elif self._explaining is None and self._until_explained(job) <= 0:
            self._reason_code, self._looked_at = job.reason_code, time.time()
            # Beside the rest, so that a grant meanwhile is acted on at once.
            self._explaining = asyncio.create_task(self._explain(hub, job))

    async def _explain(self, hub: Hub, job: JobView) -> None:
        why = await hub.explanation(self.job_id)
        self._explaining = None
        if why is not None and why.state.value == "pending":
            self._write(self._news.of_waiting(job, why))
        elif not self._news.sentence:
            self._write(self._news.of_state(job))

    def _end_explaining(self) -> None:
        if self._explaining is not None:
            self._explaining.cancel()
            self._explaining = None

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self.log.info(line)

    def _until_explained(self, job: JobView) -> float:
        """Seconds until the job is explained: soon where its reason is another, else with all others."""
        now = time.time()
        if job.reason_code and job.reason_code != self._reason_code:
            due = self._looked_at + EXPLAIN_AGAIN
        else:
            due = (self._looked_at // EXPLAIN_EVERY + 1) * EXPLAIN_EVERY
        # However the clock was set meanwhile.
        return min(EXPLAIN_EVERY, max(0.0, due - now))

    async def _read_log(self, hub: Hub, job: JobView) -> bool:
        """Show what is new in the log of the job's allocation; True if there was something."""
        if job.allocation_id not in (None, self._stream.allocation_id):
            self._show(self._stream.turn_to(job.allocation_id))
            await self._skip_shown()
        if self._stream.allocation_id is None or self._stream.complete:
            return False
        before = self._stream.offset
        try:
            chunk = await hub.logs(self._stream.allocation_id, self._stream.offset)
        except Exception as error:
            self.log.debug("The log cannot be read now: %s", error)
            return False
        self._show(self._stream.feed(chunk.text, chunk.next_offset, chunk.complete))
        return self._stream.offset > before

    async def _last_lines(self, hub: Hub, job: JobView) -> None:
        """Show what the agent sends after the end; a log that never completes does not hold up the task."""
        until = time.monotonic() + LAST_LINES_WAIT
        while not self._stream.complete and job.allocation_id and time.monotonic() < until:
            if not await self._read_log(hub, job):
                await asyncio.sleep(0.2)
        self._show(self._stream.flush())

    def _show(self, lines: list[str]) -> None:
        if lines:
            logger = logger_of(str(self._stream.allocation_id))
            for line in lines:
                logger.info(line)

    async def _show_result(self, job: JobView) -> None:
        """The Result in words at the log's end, and as the run's note where that is wanted."""
        self._write(summary(job.result))
        if self.run_note and self.task_instance is not None:
            from emep.hooks.emep import async_client

            try:
                async with asyncio.timeout(NOTE_SECONDS), await async_client(self.conn_id) as client:
                    await write_note_async(client, self._task_key(), job.result, self.log)
            except Exception as error:
                # What is only for the eye must not fail work that is done.
                self.log.info(REFUSED, error)

    async def _push(self, outcome: Outcome) -> bool:
        """Push the value as the task's XCom; False if it cannot be mapped over, which the worker reports."""
        if not self.push_result:
            return True
        if self.mapped and not isinstance(outcome.value, (list, dict)):
            return False
        from airflow.sdk.execution_time.xcom import XCom

        length = len(outcome.value) if self.mapped else None
        await asyncio.to_thread(
            XCom.set, key="return_value", value=outcome.value, _mapped_length=length, **self._task_key()
        )
        return True

    def _task_key(self) -> dict[str, Any]:
        task = self.task_instance
        assert task is not None, "a JobTrigger always belongs to a task"  # noqa: S101
        return {
            "dag_id": task.dag_id,
            "run_id": task.run_id,
            "task_id": task.task_id,
            "map_index": task.map_index,
        }

    async def _resume_position(self) -> None:
        """Continue the log, after a restart of the triggerer, where the one before stopped.

        The position that it stored says where to begin to read. Its log files, if this machine has them, tell
        the exact line.
        """
        if self.task_instance is None:
            return
        files = await asyncio.to_thread(log_files, self.task_instance)
        if await asyncio.to_thread(shown, files):
            self._before = files
        elif time.time() - self.deferred_at < EARLIEST_WORKER_LEG:
            return
        from airflow.sdk.execution_time.xcom import XCom

        try:
            kept = await asyncio.to_thread(XCom.get_one, key=POSITION_KEY, **self._task_key())
        except Exception as error:
            self.log.debug("No position in the log is known: %s", error)
            return
        if kept:
            self._stream = LogStream.at(kept)
        await self._skip_shown()

    async def _skip_shown(self) -> None:
        """Skip this allocation's lines that earlier triggerers have shown already."""
        allocation_id = self._stream.allocation_id
        if not self._before or allocation_id is None:
            return
        lines = await asyncio.to_thread(shown, self._before, allocation_id)
        if lines < self._stream.lines:
            # A triggerer was killed after it stored the position, but before it wrote the lines: read them
            # again.
            first = LogStream.at(self.log_position)
            self._stream = first if first.allocation_id == allocation_id else LogStream(allocation_id)
        self._stream.was_shown(lines)

    async def _keep_position(self, at_once: bool = False) -> None:
        """Keep the position in the log as an XCom of the task, at most once a minute."""
        now = time.monotonic()
        if self.task_instance is None or self._stream.allocation_id is None:
            return
        if not at_once and now - self._position_kept < POSITION_EVERY:
            return
        self._position_kept = now
        from airflow.sdk.execution_time.xcom import XCom

        try:
            await asyncio.to_thread(
                XCom.set, key=POSITION_KEY, value=self._stream.position(), **self._task_key()
            )
        except Exception as error:
            self.log.debug("The position in the log cannot be kept: %s", error)

    async def cleanup(self) -> None:
        """The trigger leaves this triggerer: keep the position for the next one."""
        if not self._ended:
            await self._keep_position(at_once=True)

    async def on_kill(self) -> None:
        """A person cleared, marked or deleted the task: cancel the job. A stopping triggerer never does."""
        from emep.hooks.emep import async_client

        async with await async_client(self.conn_id) as client:
            await client.cancel(self.job_id, "the Airflow task was ended by a user")
        self.log.info("Job %s is cancelled", self.job_id)


def _gone(error: Exception) -> bool:
    """Whether the ledger does not know the job, so that waiting longer cannot help."""
    return getattr(error, "status", None) in (404, 410)
