"""Writes a table of results as the run's note, with the account of EMEP's connection; best effort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emep.results.note import joined, note_of, path_of

if TYPE_CHECKING:
    from emep.client import AsyncEmepClient, EmepClient

REFUSED = "The run's note is left as it is (%s); the results stand above and on the job's page"
FULL = "The run's note has no room for the results; they stand above and on the job's page"


def write_note(api: EmepClient, task: Mapping[str, Any], result: object, log: Any) -> None:
    """Add the results to the note of the task's run; a person's own words in it stay."""
    from emep.client import Call, EmepError

    if not (note := note_of(task["task_id"], result)):
        return
    path = path_of(task)
    try:
        known = api.raw(Call("GET", path, airflow=True)).get("note")
        if (whole := joined(known, note)) is None:
            log.info(FULL)
        else:
            api.raw(Call("PATCH", path, body={"note": whole}, airflow=True))
    except EmepError as error:
        log.info(REFUSED, error)


async def write_note_async(api: AsyncEmepClient, task: Mapping[str, Any], result: object, log: Any) -> None:
    """The same for a trigger."""
    from emep.client import Call, EmepError

    if not (note := note_of(task["task_id"], result)):
        return
    path = path_of(task)
    try:
        known = (await api.raw(Call("GET", path, airflow=True))).get("note")
        if (whole := joined(known, note)) is None:
            log.info(FULL)
        else:
            await api.raw(Call("PATCH", path, body={"note": whole}, airflow=True))
    except EmepError as error:
        log.info(REFUSED, error)
