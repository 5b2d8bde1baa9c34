"""Links from a task to EMEP's own views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class JobLink(BaseOperatorLink):
    """The page of this task's job: why it waits, who holds the GPUs, what happened, its result.

    It is stored when the task's worker leg ends, so it appears with the deferral."""

    name = "EMEP job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Path of the job below Airflow's own address; empty before there is one."""
        return _below_emep(operator, "/jobs/{}")


class JobLogLink(BaseOperatorLink):
    """Link to the log, as text, of the job's present or last allocation."""

    name = "EMEP job's log"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Path of the log below Airflow's own address; empty before there is a job."""
        return _below_emep(operator, "/api/v1/jobs/{}/logs")


def _below_emep(operator: BaseOperator, path: str) -> str:
    job_id = getattr(operator, "job_id", None)
    if not job_id:
        return ""
    # Airflow may be served below a path of its own.
    base = urlsplit(str(conf.get("api", "base_url", fallback="") or "")).path.rstrip("/")
    return f"{base}/emep{path.format(quote(job_id))}"


LINKS = (JobLink(), JobLogLink())
"""The links of every operator that asks for GPUs; the browser's session authorises them."""
