"""Finds how much of a job's log earlier triggerers have shown, from their log files.

A triggerer that is killed cannot store its position, but its log lines are in the task's log already. If
their files are on this machine, or on a disk shared with it, they tell exactly where to continue. If they are
not, readers of the task's log cannot see those lines either.

Lines of a job's log have a logger of their own, named by the allocation; the files are JSON lines, in which a
job's own words cannot pretend to be one: their quotes are escaped.
"""

from __future__ import annotations

import logging
from glob import escape
from pathlib import Path
from typing import Any

LOGGER = "emep.job."
log = logging.getLogger(__name__)


def logger_of(allocation_id: str) -> Any:
    """The logger of one allocation's lines."""
    import structlog

    return structlog.get_logger(f"{LOGGER}{allocation_id}")


def log_files(ti: Any) -> list[Path]:
    """Log files of this and earlier triggerers for the present try of a task; none where there are none."""
    from airflow.sdk.configuration import conf
    from airflow.utils.helpers import log_filename_template_renderer

    try:
        name = log_filename_template_renderer()(ti=ti)
        folder = Path(conf.get("logging", "base_log_folder"))
        return sorted(folder.glob(f"{escape(name)}.trigger.*"))
    except Exception as error:
        log.debug("the log files of earlier triggerers are not known: %s", error)
        return []


def shown(files: list[Path], allocation_id: str = "") -> int:
    """How many lines of an allocation's log the files hold; empty: of all allocations'."""
    mark = f'"logger":"{LOGGER}{allocation_id}'.encode() + (b'"' if allocation_id else b"")
    count = 0
    for path in files:
        try:
            with path.open("rb") as file:
                count += sum(mark in line for line in file)
        except OSError as error:
            log.debug("%s cannot be read: %s", path, error)
    return count
