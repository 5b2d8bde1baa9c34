"""Links from a task to EMEP's own views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class JobLink(BaseOperatorLink):
    """Link to the task's job in EMEP's API; it appears when the task is deferred."""

    name = "EMEP job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Path of the job below Airflow's own address; empty before there is one."""
        return _below_job(operator, "")


class JobLogLink(BaseOperatorLink):
    """Link to the log, as text, of the job's present or last allocation."""

    name = "EMEP job's log"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Path of the log below Airflow's own address; empty before there is a job."""
        return _below_job(operator, "/logs")


def _below_job(operator: BaseOperator, path: str) -> str:
    job_id = getattr(operator, "job_id", None)
    return f"/emep/api/v1/jobs/{quote(job_id)}{path}" if job_id else ""


LINKS = (JobLink(), JobLogLink())
"""The links of every operator that asks for GPUs; the browser's session authorises them."""
