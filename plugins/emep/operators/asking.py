"""Mixin of the operators that ask EMEP for GPUs: builds the request, submits it, and cancels it on a kill.

It is not an operator by itself. ``BaseOperator`` and the provider's pod operator are both combined with it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from emep.hooks.emep import client
from emep.operators.job_arguments import OPERATOR_FIELDS
from emep.operators.rendering import RendersInWords

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from emep.client import EmepClient
    from emep.wire.jobs import JobRequest, JobView

CHECKPOINT_INTERVAL = 30.0
"""Seconds between checkpoints of the engines that save by themselves, unless a task says otherwise."""
SAVING_ENGINES = frozenset({"merge", "evaluate", "benchmark", "evolve_candidates"})
"""Engines that save at an interval; the others are over in seconds, or write each result at once."""
MAX_KEY = 440
"""Characters of a checkpoint key; a try's key is longer by its number and id, and the ledger takes 500."""
LONGEST_SECONDS = 3.2e9
"""Of a duration in the API."""
REFUSALS = (400, 403, 404, 409, 422)
"""Answers that a retry cannot change."""


class AsksForGpus(RendersInWords):
    """Asks for one job on behalf of one try of a task.

    The operator sets ``job_queue``, ``conn_id`` and the ``OPERATOR_FIELDS`` as attributes, and says in
    ``job_spec`` and ``job_fields`` what is special about it.
    """

    job_id: str | None = None
    job_queue: Any
    gpu_count: Any
    max_duration: Any
    runtime: Any
    conn_id: str

    def job_spec(self) -> dict[str, Any] | None:
        """The engine's SPEC; None where something else than an engine runs."""
        return None

    def job_fields(self) -> dict[str, Any]:
        """The job's fields to request; the policy's defaults replace those that are left out.

        Raises AirflowFailException if fields contradict each other.
        """
        values = {name: getattr(self, name) for name in OPERATOR_FIELDS}
        return {name: value for name, value in values.items() if value not in (None, "", "None")}

    def request(self, context: Context) -> JobRequest:
        """The request for this try. Raises AirflowFailException that names a wrong field."""
        from pydantic import ValidationError

        from emep.wire.jobs import AirflowTask, JobRequest

        ti, run = context["ti"], context["dag_run"]
        max_tries = getattr(ti, "max_tries", 0) or 0
        task = AirflowTask(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            # Airflow's own sum: a task that is cleared gets all its retries anew.
            first_try=max(1, max_tries - (getattr(self, "retries", 0) or 0) + 1),
            run_started_at=getattr(run, "start_date", None),
            last_try=ti.try_number > max_tries,
            execution_timeout=self._time_left(ti),
        )
        checkpoint_key = _short(f"{task.dag_id}/{task.run_id}/{task.task_id}/{task.map_index}")
        fields = self.job_fields()
        if str(getattr(self, "engine", None)) in SAVING_ENGINES:
            # The engine is told, and the scheduler knows what it costs to preempt it.
            fields.setdefault("checkpoint_interval", CHECKPOINT_INTERVAL)
        fields.setdefault("user", run.triggering_user_name or getattr(self, "owner", None))
        fields.setdefault("experiment_id", run.run_id)
        try:
            asked = {
                "queue": self.job_queue,
                "spec": self.job_spec(),
                "idempotency_key": _try_key(checkpoint_key, ti),
                "checkpoint_key": checkpoint_key,
                "airflow": task,
                **fields,
            }
            # Templates are rendered to text, so "2" is a number of GPUs here, as it is not in JSON.
            request = JobRequest.model_validate(_numbers(asked), strict=False)
        except ValidationError as error:
            raise AirflowFailException(_first_error(error)) from None
        check_startable_task(request)
        return request

    def ask(self, api: EmepClient, request: JobRequest) -> JobView:
        """Submit the request; then cancel what earlier tries have left, unless this one has taken it over.

        It waits through an outage of the API. Raises AirflowFailException if the request is refused for good,
        EmepError if no answer comes in ten minutes.
        """
        from emep.client import EmepApiError
        from emep.operators.outage import through_outage
        from emep.triggers.waiting import introduction

        log = self.log  # type: ignore[attr-defined]
        try:
            job = through_outage(lambda: api.submit_job(request), log)
        except EmepApiError as error:
            if error.status in REFUSALS:
                raise AirflowFailException(str(error)) from None
            raise
        self.job_id = job.id
        for line in introduction(job):
            log.info(line)
        through_outage(lambda: self._end_earlier_tries(api, request, job.id), log)
        return job

    def keep_position(self, context: Context, position: dict[str, Any]) -> None:
        """Store the position in the job's log for the trigger; a failure is ignored.

        A triggerer that restarts reads it, and Airflow logs an error if there is nothing to read.
        """
        from emep.triggers.job import POSITION_KEY

        try:
            context["ti"].xcom_push(key=POSITION_KEY, value=position)
        except Exception as error:
            self.log.debug("The position in the log cannot be kept: %s", error)  # type: ignore[attr-defined]

    def _time_left(self, ti: Any) -> float | None:
        """Seconds of the task's ``execution_timeout`` that are left of this try; None: it has none."""
        limit = getattr(self, "execution_timeout", None)
        if limit is None:
            return None
        started = getattr(ti, "start_date", None)
        gone = 0.0 if started is None else (datetime.now(UTC) - started).total_seconds()
        return min(max(1.0, float(limit.total_seconds()) - max(0.0, gone)), LONGEST_SECONDS)

    def on_kill(self) -> None:
        """Cancel the job, when the worker is told to end, if the task was marked, cleared or deleted.

        If the worker ends because its machine stops or Airflow cannot be reached, the job is left to the next
        try. While the task is deferred, the trigger cancels.
        """
        if self.job_id is None:
            return
        from emep.client import EmepError

        log = self.log  # type: ignore[attr-defined]
        try:
            with client(self.conn_id) as api:
                reason = "the worker of its Airflow task was told to end it"
                job = api.cancel(self.job_id, reason, if_unwanted=True)
        except (EmepError, AirflowException) as error:
            log.warning("Job %s is left as it is: %s", self.job_id, error)
            return
        log.info("Job %s is %s", self.job_id, job.state.value)

    def _end_earlier_tries(self, api: EmepClient, request: JobRequest, own: str) -> None:
        """Cancel jobs that killed workers of earlier tries left, so that they hold no GPUs any more."""
        task = request.airflow
        if task is None or task.try_number <= 1:
            return
        from emep.operators.earlier_tries import cancel_jobs

        key = (task.dag_id, task.run_id, task.task_id, task.map_index)
        reason = f"try {task.try_number} of its task has begun"
        for job_id in cancel_jobs(api, *key, up_to_try=task.try_number - 1, reason=reason, but=own):
            self.log.info("Job %s of an earlier try is cancelled", job_id)  # type: ignore[attr-defined]


def _short(key: str) -> str:
    """The key itself, or its beginning and a digest where it is longer than the ledger takes."""
    if len(key) <= MAX_KEY:
        return key
    return f"{key[: MAX_KEY - 33]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _try_key(checkpoint_key: str, ti: Any) -> str:
    """The idempotency key of one try, so that its request can be sent again.

    Airflow gives each try of each run an id of its own, which tells a run from one that was deleted and
    triggered again under its name.
    """
    own = getattr(ti, "id", None)
    return f"{checkpoint_key}/{ti.try_number}" + (f"/{own}" if own else "")


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """Check that no field for a number has a truth value, which pydantic would take for 0 or 1.

    Raises AirflowFailException that names the field.
    """
    for name in ("gpu_count", "node_count", "gpu_per_node", "cpu"):
        if isinstance(fields.get(name), bool):
            raise AirflowFailException(f"{name}: a number is needed, not {fields[name]}.")
    return fields


def on_one_node(fields: dict[str, Any]) -> None:
    """Ask for GPUs of one node: a grant over several would start the engine on each."""
    topology = fields.get("topology") or {}
    if isinstance(topology, dict) and topology.get("required") not in ("nvlink", "node"):
        fields["topology"] = topology | {"required": "node"}


def check_startable_task(request: JobRequest) -> None:
    """Raises AirflowFailException, with the API's own sentence, for what EMEP would refuse to start."""
    from emep.wire.engines import check_startable
    from emep.wire.errors import InvalidError

    gpus, nodes, per_node = request.gpu_count, request.node_count, request.gpu_per_node
    if gpus is None:
        gpus = 1 if per_node is None else per_node * (nodes or 1)
    try:
        check_startable(
            runtime=request.runtime,
            queue=request.queue,
            engine=(request.spec or {}).get("engine"),
            gpus=gpus,
            nodes=nodes if nodes is not None or not per_node else gpus // per_node,
        )
    except InvalidError as error:
        raise AirflowFailException(f"{error}.") from None


def engine_spec(operator: Any) -> dict[str, Any]:
    """The SPEC of the engine that an operator's arguments describe."""
    return {
        "schema_version": 1,
        "engine": operator.engine,
        "input": {**(operator.input or {}), **(operator.extra_input or {})},
        "device": operator.device,
        "chunked": False,
        "seed": int(operator.seed or 0),
        "output_uri": operator.output_uri,
    }


def _first_error(error: Any) -> str:
    """pydantic's first complaint as one sentence that names the field."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{field}: {message} (it was {first.get('input')!r})."
