"""Folders of jobs below ``artifact_uri`` and ``checkpoint_uri``. Pure: names in, paths out.

``projects/PROJECT/runs/USER/DAG/RUN`` holds all of one DAG run, ``projects/PROJECT/jobs/JOB`` that of a
job that no DAG run asked for, ``OWNER/KEY`` the checkpoints of one piece of work. The control plane fills the
names in from the job that it has stored, so a path shows its owner.
"""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_UNSAFE = re.compile(r"[^a-z0-9_-]+")
_READABLE, _DIGEST = 60, 32


def folder_of(name: str) -> str:
    """A name as one folder's name: readable, safe on every file system, and never the same for two names.

    Names of small letters, digits, dashes and underscores stay as they are. Others keep what they can and end
    with ``~`` and a digest; no plain name has a ``~``. Case is folded, so that file systems without one do.
    """
    if _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{_UNSAFE.sub('-', name.lower()).strip('-')[:_READABLE]}~{digest}"


def project_folder(project: str) -> str:
    """The folder of all runs of a project, below ``artifact_uri``."""
    return f"projects/{folder_of(project)}"


def user_folder(project: str, user: str) -> str:
    """The folder of all runs of one user in a project, below ``artifact_uri``."""
    return f"{project_folder(project)}/runs/{folder_of(user)}"


def run_folder(project: str, user: str, dag_id: str, run_id: str) -> str:
    """The folder of one DAG run, below ``artifact_uri``.

    A later run may have the name of a deleted one, but in another user's folder if another user started it.
    """
    return f"{user_folder(project, user)}/{folder_of(dag_id)}/{folder_of(run_id)}"


def job_folder(project: str, job_id: str) -> str:
    """The folder of a job that no DAG run asked for, below ``artifact_uri``."""
    return f"{project_folder(project)}/jobs/{folder_of(job_id)}"


def checkpoint_folder(user: str, key: str) -> str:
    """The folder of the checkpoints of one piece of work of a user's, below ``checkpoint_uri``."""
    return f"{folder_of(user)}/{folder_of(key)}"
