"""Parameters that several routes take, with the forms that every database can look up."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query

from emep.api.runtime import Runtime, current_runtime

ID_PATTERN = _ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

JobId = Annotated[str, Path(max_length=80, pattern=_ID, description="A job's id.")]
AllocationId = Annotated[
    str, Path(max_length=80, pattern=_ID, description="An allocation's id: its job's and its epoch.")
]
NodeName = Annotated[str, Path(max_length=200, pattern=_ID, description="A node's name.")]
AfterNode = Annotated[
    str | None,
    Query(alias="next", max_length=200, pattern=_ID, description="The page after this cursor."),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Entries of one page.")]
After = Annotated[
    str | None, Query(alias="next", max_length=80, pattern=_ID, description="The page after this cursor.")
]
Offset = Annotated[int, Query(ge=0, lt=2**62, description="Byte offset in the log.")]
Timeout = Annotated[float, Query(ge=0, le=30, description="Seconds to wait for news.")]
Text = Annotated[str | None, Query(max_length=250, pattern=_PRINTABLE)]
Reason = Annotated[str, Query(max_length=1000, pattern=_PRINTABLE, description="Why; kept in the audit.")]
IfUnwanted = Annotated[
    bool,
    Query(
        description="Cancel only if the Airflow task that asked has given the job up (it was marked, cleared"
        " or deleted). A job whose task goes on, or will be tried again, is not cancelled."
    ),
]
RuntimeDep = Annotated[Runtime, Depends(current_runtime)]
