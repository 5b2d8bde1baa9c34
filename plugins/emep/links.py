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
        job_id = getattr(operator, "job_id", None)
        return f"/emep/api/v1/jobs/{quote(job_id)}" if job_id else ""
