"""The operator that runs an engine on GPUs granted by EMEP's scheduler.

It asks in the task's first seconds, stays for a few more (a short job ends within them and needs no
deferral), then defers once for the whole life of the job. From the grant on nothing needs an Airflow worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from emep.hooks.emep import DEFAULT_CONNECTION, client
from emep.operators.asking import AsksForGpus, engine_spec, on_one_node
from emep.operators.job_arguments import OPERATOR_FIELDS, retries_by_policy, takes_job_fields
from emep.operators.links import LINKS
from emep.results.summary import summary
from emep.triggers.job import JobTrigger
from emep.triggers.log_stream import LogStream
from emep.triggers.outcome import Outcome, outcome_of
from emep.triggers.run_note import REFUSED, write_note
from emep.triggers.waiting import JobNews

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from emep.client import EmepClient
    from emep.wire.jobs import JobView

KUBERNETES = "kubernetes"
INLINE_SECONDS = 8.0
LAST_LINES_SECONDS = 3.0
"""How long the rest of a log may take after the job's end; then the task ends without the last lines."""
_POLL = (0.1, 0.5)


class FairShareGpuOperator(AsksForGpus, BaseOperator):
    """Run one engine as one job of EMEP.

    ``engine`` and ``input`` are those of the SPEC; ``extra_input`` is merged over ``input`` (for mapped
    tasks: what differs); ``output_uri`` is where the engine writes. ``inline_wait`` is how many seconds the
    worker stays with the job before it defers. ``return_field`` is the part of the engine's Result that
    becomes the XCom, such as ``metrics.batches``; by default all of it. Every other field is one of the
    job's, templated; what is left out is the policy's default. Bad input (exit 65) and a request that is
    refused fail the task without a retry. ``execution_timeout`` counts from the task's start, waiting
    included; EMEP enforces it. ``run_note`` writes the metrics as the run's note. ``retries`` and their
    pauses are the policy file's.
    """

    template_fields: Sequence[str] = (
        "engine",
        "input",
        "extra_input",
        "output_uri",
        "device",
        "seed",
        "job_queue",
        *OPERATOR_FIELDS,
    )
    template_fields_renderers = {"input": "json", "extra_input": "json"}  # noqa: RUF012
    operator_extra_links = LINKS
    ui_color = "#dcecd9"

    @retries_by_policy
    @takes_job_fields()
    def __init__(
        self,
        *,
        engine: str,
        input: Any = None,
        output_uri: Any = "",
        extra_input: Any = None,
        device: Any = "auto",
        seed: Any = 0,
        job_queue: Any = "merge",
        return_field: str = "",
        if_empty: Any = None,
        inline_wait: float = INLINE_SECONDS,
        worker_end: bool = False,
        run_note: bool = False,
        conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            **kwargs,
        )
        self.engine = engine
        self.input = input
        self.extra_input = extra_input
        self.output_uri = output_uri
        self.device = device
        self.seed = seed
        self.job_queue = job_queue
        self.return_field = return_field
        self.if_empty = if_empty
        self.inline_wait = inline_wait
        self.worker_end = worker_end
        self.run_note = run_note
        self.conn_id = conn_id

    def execute(self, context: Context) -> Any:
        """Ask for the job, watch it for ``inline_wait`` seconds, then defer.

        It waits through an outage of the API. If the job cannot be watched from here, it defers at once.
        Raises as ``finish`` does; EmepError if no answer comes.
        """
        self.fail_unrendered()
        if self.runtime == KUBERNETES:
            self._defer_to_pod(context)
        request = self.request(context)
        with client(self.conn_id) as api:
            job = self.ask(api, request)
            stream, news = LogStream(), JobNews()
            job = self._stay(api, job, stream, news)
        if _ended(job):
            return self.finish(context, job)
        self.keep_position(context, stream.handed_over())
        self.defer(
            trigger=JobTrigger(
                job_id=job.id,
                conn_id=self.conn_id,
                deferred_at=time.time(),
                log_position=stream.handed_over(),
                said=news.handed_over(),
                return_field=self.return_field,
                if_empty=self.if_empty,
                push_result=self.do_xcom_push,
                mapped=not _in_mapped_task(context) and next(self.iter_mapped_dependants(), None) is not None,
                worker_end=self.worker_end,
                run_note=self.run_note,
            ),
            method_name="execute_complete",
        )

    def _defer_to_pod(self, context: Context) -> NoReturn:
        """Run the engine in a pod: render it, ask for the job and defer at once."""
        from emep.operators import in_pod

        request = self.request(context)
        with client(self.conn_id) as api:
            plan, cluster = in_pod.planned(self, context, api)
            job = self.ask(api, request)
        self.keep_position(context, LogStream().position())
        mapped = not _in_mapped_task(context) and next(self.iter_mapped_dependants(), None) is not None
        self.defer(
            trigger=in_pod.trigger(self, job.id, plan, cluster, mapped=mapped),
            method_name="execute_complete",
        )
        raise AssertionError("deferring does not return")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish a failure, or a success that needs a worker, after the deferral. Raises as ``finish``."""
        from emep.wire.jobs import JobView

        return self.finish(context, JobView.model_validate(event["job"]))

    def finish(self, context: Context, job: JobView) -> Any:
        """The task's value from a job that has ended.

        Raises AirflowException with the reason in one sentence, or AirflowFailException where a retry cannot
        help.
        """
        outcome = outcome_of(job, self.return_field, self.if_empty)
        if outcome.succeeded:
            self._show_result(context, job)
            return self.value(context, outcome)
        raise (AirflowException if outcome.retry else AirflowFailException)(outcome.sentence)

    def _show_result(self, context: Context, job: JobView) -> None:
        """The Result in words at the log's end, and as the run's note where that is wanted."""
        self._show(summary(job.result))
        if not self.run_note:
            return
        ti = context["ti"]
        task = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id}
        try:
            with client(self.conn_id) as api:
                write_note(api, task, job.result, self.log)
        except Exception as error:
            # What is only for the eye must not fail work that is done.
            self.log.info(REFUSED, error)

    def value(self, context: Context, outcome: Outcome) -> Any:
        """What a success returns; for subclasses that do more (they set ``worker_end``)."""
        return outcome.value

    def job_fields(self) -> dict[str, Any]:
        """The job's fields; an engine that an agent runs is the processes of one node."""
        fields = super().job_fields()
        if fields.get("runtime", "agent") in ("agent", KUBERNETES):
            # A grant over several nodes would start the engine on each; a pod stands on one.
            on_one_node(fields)
        fields.setdefault("job_type", str(self.engine))
        return fields

    def job_spec(self) -> dict[str, Any]:
        """The SPEC of the engine."""
        return engine_spec(self)

    def _stay(self, api: EmepClient, job: JobView, stream: LogStream, news: JobNews) -> JobView:
        """Watch the job from the worker until it has ended or ``inline_wait`` is over; its log goes to the
        task's. An API that is away ends the watch: the job goes on, and its trigger follows it."""
        from emep.operators.outage import is_outage

        try:
            return self._watch(api, job, stream, news)
        except Exception as error:
            if not is_outage(error):
                raise
            self.log.warning("Job %s cannot be watched now (%s); its trigger follows it", job.id, error)
            return job

    def _watch(self, api: EmepClient, job: JobView, stream: LogStream, news: JobNews) -> JobView:
        until, pause, explained = time.monotonic() + self.inline_wait, _POLL[0], ""
        while True:
            if job.state.value != "pending":
                self._show(news.of_state(job))
            elif job.reason_code not in ("", explained):
                # The planner has looked at it, and has left it waiting.
                explained = job.reason_code
                why = api.explain(job.id)
                if why.state.value == "pending":
                    self._show(news.of_waiting(job, why))
            self._read_log(api, job, stream)
            if _ended(job):
                last_lines = time.monotonic() + LAST_LINES_SECONDS
                while not stream.complete and job.allocation_id and time.monotonic() < last_lines:
                    self._read_log(api, job, stream)
                    time.sleep(0.1)
                self._show(stream.flush())
                return job
            if time.monotonic() >= until:
                return job
            time.sleep(pause)
            pause = min(_POLL[1], pause * 1.5)
            job = api.job(job.id)

    def _read_log(self, api: EmepClient, job: JobView, stream: LogStream) -> None:
        self._show(stream.turn_to(job.allocation_id))
        if stream.allocation_id is None or stream.complete or job.started_at is None:
            return
        chunk = api.logs(stream.allocation_id, stream.offset)
        self._show(stream.feed(chunk.text, chunk.next_offset, chunk.complete))

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self.log.info(line)


def _in_mapped_task(context: Context) -> bool:
    return (context["ti"].map_index or 0) >= 0


def _ended(job: JobView) -> bool:
    from emep.wire.base import ENDED_STATES

    return job.state in ENDED_STATES
