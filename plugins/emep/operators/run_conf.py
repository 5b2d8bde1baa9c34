"""Refuses unknown fields of a run's conf and names the nearest known one; Params' schemas check the rest."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from emep.wire.engines import check_startable
from emep.wire.errors import InvalidError


def refuse_unknown_fields(context: Mapping[str, Any]) -> None:
    """Fail the task, without a retry, if the run's conf has a field that the DAG's form does not.

    Raises AirflowFailException with one sentence that names the field and the nearest valid one.
    """
    known = list(context["dag"].params)
    for field in context["dag_run"].conf or {}:
        if field not in known:
            near = get_close_matches(field, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(sorted(known))}."
            raise AirflowFailException(f"conf: {field!r} is not a field of {context['dag'].dag_id}; {hint}")


def refuse_idle_gpus(context: Mapping[str, Any], engine: str) -> None:
    """Fail the run's first task, without a retry, where its ``gpu_count`` is more than ``engine`` can use.

    Raises AirflowFailException with the sentence that ``POST /jobs`` has for it.
    """
    params = context["params"]
    runtime = str(params.get("runtime") or "agent")
    try:
        check_startable(runtime=runtime, engine=engine, gpus=int(params.get("gpu_count") or 0))
    except InvalidError as error:
        raise AirflowFailException(f"{error}.") from None
