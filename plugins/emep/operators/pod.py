"""``KubernetesPodOperator`` whose GPUs are granted by EMEP's scheduler.

It renders its pod as the provider's operator does, asks in the task's first seconds, and defers once for the
whole life of the job: on the grant the trigger creates the pod, and sees it through preemption and loss.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.cncf.kubernetes.callbacks import ExecutionMode
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from emep.hooks.emep import DEFAULT_CONNECTION, client
from emep.kubernetes.manifest import SPEC_FOLDER, SPEC_KEY, PodPlan, build_pod
from emep.operators.asking import AsksForGpus, engine_spec, on_one_node
from emep.operators.job_arguments import OPERATOR_FIELDS, retries_by_policy, takes_job_fields
from emep.operators.links import LINKS
from emep.operators.pod_parts import PLACEHOLDER, as_json, gpus_of, placeholder_lease
from emep.results.summary import summary
from emep.triggers.log_stream import LogStream
from emep.triggers.outcome import outcome_of
from emep.triggers.pod import PodTrigger

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context
    from kubernetes.client import models as k8s

    from emep.client import EmepClient
    from emep.wire.jobs import JobView

KUBERNETES = "kubernetes"
SPEC_PATH = f"{SPEC_FOLDER}/{SPEC_KEY}"
XCOM_FIELD = "return_value"
NO_STARTUP_TIMEOUT = 120
"""The provider's default, which stands for the policy's start deadline here."""


class NVLinkKubernetesPodOperator(AsksForGpus, KubernetesPodOperator):
    """Run a pod as one job of EMEP, in one NVLink group where ``nvlink_required``.

    Every argument of the provider's operator is taken; always deferrable. The job's fields are as those of
    ``FairShareGpuOperator``; without ``gpu_count`` the GPU limit in ``container_resources`` counts.

    With ``engine`` (and ``input``, ``output_uri``, ``device``, ``seed``) the pod runs ``emep-engine run`` on
    that SPEC; otherwise ``image``, ``cmds`` and ``arguments`` are the user's, and EMEP renews the lease for
    it while the pod runs. ``supervised=True`` says that the image does so itself. ``api_url`` is EMEP's API
    as pods reach it (``[emep] pod_api_url``; by default what the connection says).
    ``startup_timeout_seconds`` counts from the pod's creation; by default the policy's start deadline.
    """

    template_fields: Sequence[str] = tuple(
        dict.fromkeys(
            (
                *KubernetesPodOperator.template_fields,
                "engine",
                "input",
                "extra_input",
                "output_uri",
                "device",
                "seed",
                "job_queue",
                *OPERATOR_FIELDS,
            )
        )
    )
    template_fields_renderers = {  # noqa: RUF012
        **KubernetesPodOperator.template_fields_renderers,
        "input": "json",
        "extra_input": "json",
    }
    operator_extra_links = LINKS
    ui_color = "#d9e6ec"

    @retries_by_policy
    @takes_job_fields(runtime=KUBERNETES)
    def __init__(
        self,
        *,
        engine: Any = None,
        input: Any = None,
        extra_input: Any = None,
        output_uri: Any = "",
        device: Any = "auto",
        seed: Any = 0,
        supervised: bool | None = None,
        job_queue: Any = "merge",
        return_field: str = "",
        if_empty: Any = None,
        worker_end: bool = False,
        gpu_resource: str = "nvidia.com/gpu",
        api_url: str | None = None,
        startup_timeout_seconds: float | None = None,
        do_xcom_push: bool | None = None,
        conn_id: str = DEFAULT_CONNECTION,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("deferrable", None)
        push = engine is not None if do_xcom_push is None else do_xcom_push
        super().__init__(
            deferrable=True,
            do_xcom_push=push,
            startup_timeout_seconds=int(startup_timeout_seconds or NO_STARTUP_TIMEOUT),
            **kwargs,
        )
        self.engine = engine
        self.input = input
        self.extra_input = extra_input
        self.output_uri = output_uri
        self.device = device
        self.seed = seed
        self.supervised = supervised
        self.job_queue = job_queue
        self.return_field = return_field
        self.if_empty = if_empty
        self.worker_end = worker_end
        self.gpu_resource = gpu_resource
        self.api_url = api_url
        self.startup_timeout = startup_timeout_seconds
        self.conn_id = conn_id

    # ---- the worker's legs ---------------------------------------------------------------------------------

    def execute(self, context: Context) -> NoReturn:
        """Render the pod, ask for the job and defer.

        Raises AirflowFailException if the pod or the request is invalid, EmepError if the API does not
        answer.
        """
        self.fail_unrendered()
        request = self.request(context)
        with client(self.conn_id) as api:
            plan = self.planned(context, api)
            job = self.ask(api, request)
        self.keep_position(context, LogStream().position())
        self._defer(context, job, plan)

    def planned(self, context: Context, api: EmepClient) -> PodPlan:
        """The pod as the trigger will start it. Raises AirflowFailException if it is invalid."""
        self.name = self._set_name(self.name)
        plan = self.plan(self._rendered(context), api)
        try:
            build_pod(plan, "0" * 16, "0" * 16 + "-1", placeholder_lease(self._gpus(), self.max_duration))
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        return plan

    def cluster(self) -> dict[str, Any]:
        """Which cluster, for the trigger."""
        return {
            "conn_id": self.kubernetes_conn_id,
            "in_cluster": self.in_cluster,
            "cluster_context": self.cluster_context,
            "config_file": self.config_file,
        }

    def _defer(self, context: Context, job: JobView, plan: PodPlan) -> NoReturn:
        mapped = (context["ti"].map_index or 0) < 0 and next(self.iter_mapped_dependants(), None) is not None
        self.defer(
            trigger=PodTrigger(
                job_id=job.id,
                conn_id=self.conn_id,
                deferred_at=time.time(),
                return_field=XCOM_FIELD if plan.result_as_message else self.return_field,
                if_empty=self.if_empty,
                push_result=self.do_xcom_push,
                mapped=mapped,
                worker_end=self.worker_end,
                plan=plan.to_dict(),
                cluster=self.cluster(),
            ),
            method_name="execute_complete",
        )
        raise AssertionError("deferring does not return")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish a failure, or a success that needs a worker, after the deferral.

        Raises AirflowException with the reason in one sentence, AirflowFailException if a retry cannot help,
        AirflowSkipException for an exit code of ``skip_on_exit_code``.
        """
        from emep.wire.jobs import JobView

        job = JobView.model_validate(event["job"])
        if job.exit_code and job.exit_code in _codes(self.skip_on_exit_code):
            raise AirflowSkipException(f"the pod exited with {job.exit_code}, which skips the task")
        field = self.return_field if self.engine is not None or self.supervised else XCOM_FIELD
        outcome = outcome_of(job, field if self.do_xcom_push else "", self.if_empty)
        if outcome.succeeded:
            for line in summary(job.result):
                self.log.info(line)
            return outcome.value if self.do_xcom_push else None
        raise (AirflowException if outcome.retry else AirflowFailException)(outcome.sentence)

    # ---- the pod -------------------------------------------------------------------------------------------

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> k8s.V1Pod:
        """The pod as the provider renders it, but without its sidecar.

        Results arrive through EMEP or as the termination message, and a sidecar would hold the GPUs after the
        work's end.
        """
        push, self.do_xcom_push = self.do_xcom_push, False
        suffix, self.random_name_suffix = self.random_name_suffix, False
        try:
            pod = super().build_pod_request_obj(context, dry_run=dry_run)
        finally:
            self.do_xcom_push, self.random_name_suffix = push, suffix
        if self.engine is not None:
            self._run_engine(pod)
        return pod

    def _run_engine(self, pod: k8s.V1Pod) -> None:
        for container in pod.spec.containers:
            if container.name == self.base_container_name:
                container.command = container.command or ["emep-engine"]
                container.args = container.args or ["run", SPEC_PATH]

    def _rendered(self, context: Context) -> dict[str, Any]:
        """The pod as JSON. Raises AirflowFailException in one sentence."""
        from kubernetes.config.config_exception import ConfigException

        try:
            pod = self.build_pod_request_obj(context)
        except (ConfigException, OSError) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise AirflowFailException(
                f"connection {self.kubernetes_conn_id!r} cannot be used for pods: {words}"
            ) from None
        for callback in self.callbacks:
            callback.on_pod_manifest_created(
                pod_request=pod, client=self.client, mode=ExecutionMode.ASYNC, context=context, operator=self
            )
        return as_json(pod)

    def plan(self, pod: dict[str, Any], api: EmepClient | None) -> PodPlan:
        """What the trigger starts."""
        supervised = self.engine is not None if self.supervised is None else self.supervised
        url = self.api_url or str(conf.get("emep", "pod_api_url", fallback="") or "")
        return PodPlan(
            pod=pod,
            base_container=self.base_container_name,
            api_url=url.rstrip("/") if url else (api.api_url if api is not None else PLACEHOLDER),
            supervised=supervised,
            has_spec=self.engine is not None,
            result_as_message=self.do_xcom_push and not supervised,
            gpu_resource=self.gpu_resource,
            startup_timeout=self.startup_timeout,
            get_logs=self.get_logs,
            keep=self.on_finish_action.value,
        )

    def dry_run(self) -> None:
        """Print the pod as it would be created, with a placeholder for what the grant decides."""
        import yaml

        pod = as_json(self.build_pod_request_obj(dry_run=True))
        built = build_pod(
            self.plan(pod, None), "job", "job-1", placeholder_lease(self._gpus(), self.max_duration)
        )
        print(yaml.safe_dump(built, sort_keys=False))

    # ---- the job -------------------------------------------------------------------------------------------

    def job_fields(self) -> dict[str, Any]:
        """The job's fields, with one node, because a pod runs on one."""
        fields = super().job_fields()
        runtime = fields.setdefault("runtime", "kubernetes")
        if runtime != "kubernetes":
            raise AirflowFailException(f"runtime: a pod's job is of runtime kubernetes, not {runtime}")
        on_one_node(fields)
        if (count := self._gpus()) not in (None, "", "None"):
            fields["gpu_count"] = count
        fields.setdefault("job_type", str(self.engine or "pod"))
        return fields

    def _gpus(self) -> Any:
        """The GPUs to ask for: the field, else the limit in ``container_resources``."""
        if self.gpu_count not in (None, "", "None"):
            return self.gpu_count
        return gpus_of(self.container_resources)

    def job_spec(self) -> dict[str, Any] | None:
        """The SPEC, where an engine runs."""
        if self.engine is None:
            return None
        return engine_spec(self)


def _codes(value: int | Container[int] | None) -> Container[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value
