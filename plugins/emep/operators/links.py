"""Links from a task to EMEP's own views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class JobLink(BaseOperatorLink):
    """The job of this task in EMEP's API. It is stored when the task's worker leg ends, so it appears with
    the deferral."""

    name = "EMEP job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Path of the job below Airflow's own address; empty before there is one."""
        return _below_job(operator, "")


class JobLogLink(BaseOperatorLink):
    """The log of the job's work, as text: of its present allocation, or of its last."""

    name = "EMEP job's log"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Path of the log below Airflow's own address; empty before there is a job."""
        return _below_job(operator, "/logs")


def _below_job(operator: BaseOperator, path: str) -> str:
    job_id = getattr(operator, "job_id", None)
    return f"/emep/api/v1/jobs/{quote(job_id)}{path}" if job_id else ""


LINKS = (JobLink(), JobLogLink())
"""Of every operator that asks for GPUs; the browser's own session opens them."""
