"""The sensor of the health DAG: waits, without a worker, for findings about nodes, GPUs and leases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from emep.hooks.emep import DEFAULT_CONNECTION, client
from emep.operators.rendering import RendersInWords
from emep.triggers.health import CURSOR_KEY, GpuHealthTrigger, batch_of, condition_of, describe
from emep.wire.units import parse_duration

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

HOUR = 3600.0


class GpuHealthSensor(RendersInWords, BaseSensorOperator):
    """Ends with the next batch of findings, or after ``watch`` without any.

    A batch is what is found within ``settle`` after the first finding. Each is a line of the task's log; the
    XCom has all of them. The watch goes on where the run before left off, so nothing between two runs is
    missed. The connection's user must be an operator. Durations are seconds, or text such as ``1h``.
    """

    template_fields: Sequence[str] = ("watch", "settle", "drain_unhealthy")
    ui_color = "#f2e3c6"

    def __init__(
        self,
        *,
        watch: Any = HOUR,
        settle: Any = 10.0,
        drain_unhealthy: Any = False,
        conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.watch = watch
        self.settle = settle
        self.drain_unhealthy = drain_unhealthy
        self.conn_id = conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Defer to the trigger. Raises AirflowFailException for a duration that is none."""
        self.fail_unrendered()
        if not self.deferrable:
            return super().execute(context)
        watch, settle = self._seconds("watch"), self._seconds("settle")
        now = time.time()
        self.defer(
            trigger=GpuHealthTrigger(
                conn_id=self.conn_id,
                since=self.cursor(context),
                deferred_at=now,
                until=now + watch,
                settle=settle,
                drain_unhealthy=str(self.drain_unhealthy).lower() == "true",
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Report a failed watch on the worker. Raises AirflowException with the reason."""
        raise AirflowException(f"the hardware cannot be watched: {event.get('error') or event}")

    def poke(self, context: Context) -> PokeReturnValue:
        """One check from the worker, for runs that do not defer."""
        if not hasattr(self, "_cursor"):
            self._cursor = self.cursor(context)
        with client(self.conn_id) as api:
            checkup = api.check_nodes(self._cursor)
        self._cursor = checkup.cursor
        self.log.info(condition_of(checkup))
        for finding in checkup.findings:
            self.log.info(describe(finding))
        if not checkup.findings:
            return PokeReturnValue(is_done=False)
        context["ti"].xcom_push(key=CURSOR_KEY, value=checkup.cursor)
        return PokeReturnValue(is_done=True, xcom_value=batch_of(checkup.findings, checkup))

    def cursor(self, context: Context) -> int | None:
        """The cursor at which the last ended run stopped; None without one: the watch then begins now."""
        ti = context["ti"]
        kept = ti.xcom_pull(
            task_ids=self.task_id, key=CURSOR_KEY, map_indexes=-1, include_prior_dates=True, default=None
        )
        return kept if isinstance(kept, int) else None

    def _seconds(self, name: str) -> float:
        try:
            return parse_duration(getattr(self, name))
        except ValueError as error:
            raise AirflowFailException(f"{name}: {error}") from None
