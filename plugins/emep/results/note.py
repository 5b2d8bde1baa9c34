"""A table of results as the note of a DAG run, which Airflow shows as Markdown.

A task cannot write a note through Airflow's task SDK; EMEP's service account can, over the public API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emep.results.tables import Table, as_markdown, escaped, table_of

MOST = 1000
"""Characters of a note that Airflow takes."""
_MARK = "**EMEP**"


def note_of(task_id: str, result: object) -> str:
    """The metrics of a task's Result as a note; empty where they make no table."""
    table = table_of(result.get("metrics")) if isinstance(result, Mapping) else None
    if table is None:
        return ""
    head = f"{_MARK}: {escaped(task_id[:100])}\n\n"
    for smaller in (table, _without_errors(table), _names_and_last(table)):
        if len(head) + len(as_markdown(smaller)) <= MOST:
            return head + as_markdown(smaller)
    return head + _first_rows(_names_and_last(table), MOST - len(head))


def joined(known: str | None, note: str) -> str | None:
    """The run's note with this one in it: what a person has written stays. None where there is no room."""
    theirs = (known or "").partition(_MARK)[0].rstrip()
    whole = f"{theirs}\n\n{note}" if theirs else note
    return whole if len(whole) <= MOST else None


def path_of(task: Mapping[str, Any]) -> str:
    """Path of the run below Airflow's API. Ids are one part each, whatever characters they have."""
    from urllib.parse import quote

    dag_id, run_id = (quote(str(task[name]), safe="") for name in ("dag_id", "run_id"))
    return f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"


def _without_errors(table: Table) -> Table:
    return Table(table.header, tuple(tuple(cell.split(" ± ")[0] for cell in row) for row in table.rows))


def _names_and_last(table: Table) -> Table:
    """The names and the last column, which is the combined score."""
    return Table(
        (table.header[0], table.header[-1]),
        tuple((row[0], row[-1].split(" ± ")[0]) for row in table.rows),
    )


def _first_rows(table: Table, room: int) -> str:
    for count in range(len(table.rows) - 1, 0, -1):
        more = f"\n\nand {len(table.rows) - count} more, in the task's log"
        text = as_markdown(Table(table.header, table.rows[:count])) + more
        if len(text) <= room:
            return text
    return "in the task's log"
