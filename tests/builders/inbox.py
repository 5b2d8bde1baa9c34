"""Airflow's supervisor, as far as a trigger speaks to it: what is sent there is kept."""

from __future__ import annotations

from typing import Any


class Inbox:
    """Set it as ``SUPERVISOR_COMMS`` of the task runner."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.kept: dict[str, Any] = {}

    def send(self, msg: Any) -> Any:
        self.sent.append(msg)
        if type(msg).__name__ == "SetXCom":
            self.kept[msg.key] = msg.value
            return None
        from airflow.sdk.execution_time.comms import XComResult

        return XComResult(key=msg.key, value=self.kept.get(msg.key))

    def value(self, key: str = "return_value") -> Any:
        return self.kept[key]
