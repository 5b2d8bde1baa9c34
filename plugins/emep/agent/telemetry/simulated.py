"""Simulated GPUs, for demos and tests. The use that they report is measured on the work, not invented.

The utilization of a simulated GPU is the CPU time of the processes that were granted it, its memory in use
theirs; both are shared evenly among the GPUs of a grant. It has no temperature of its own.

A GPU is made to fail by writing ``simulated-faults.json`` into the agent's state folder, and repaired by
taking it out again: ``{"2": "fell off the bus"}`` is reported with these words, ``{"2": {"xid": 79}}`` (also
``temperature_c``, ``ecc_errors``, ``remapping``: pending or failed) is judged by the rules that real GPUs are
judged by. An Xid of the file happens once, when it is first read there.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emep.agent.process import usage_of_sessions
from emep.agent.telemetry.base import NO_DEVICES
from emep.agent.telemetry.judgement import Reading, fault
from emep.agent.telemetry.xids import XidAction, XidRules
from emep.wire.nodes import GpuHealth, GpuReport


@dataclass(frozen=True)
class _Fault:
    """What is wrong with a simulated GPU; by default nothing."""

    reason: str = ""
    temperature_c: float | None = None
    ecc_errors: int | None = None
    xid: int | None = None

    @classmethod
    def read(cls, entry: object, rules: XidRules) -> _Fault:
        """An entry of the faults file: words, or measurements that are judged as a real GPU's are."""
        if not isinstance(entry, dict):
            return cls(reason=str(entry))
        temperature, ecc, xid = (entry.get(name) for name in ("temperature_c", "ecc_errors", "xid"))
        try:
            measured = cls(
                temperature_c=None if temperature is None else float(temperature),
                ecc_errors=None if ecc is None else int(ecc),
                xid=None if xid is None else int(xid),
            )
        except (TypeError, ValueError) as error:
            return cls(reason=f"simulated-faults.json: {error}")
        before = None if measured.ecc_errors is None else 0
        reading = Reading(
            xid=measured.xid,
            ecc_errors=measured.ecc_errors,
            ecc_errors_before=before,
            temperature_c=measured.temperature_c,
            remapping_pending=entry.get("remapping") == "pending",
            remapping_failed=entry.get("remapping") == "failed",
        )
        return replace(measured, reason=fault(reading, rules))


class SimulatedTelemetry:
    """``count`` GPUs in NVLink groups of ``group_size`` (0: no NVLink); ``gpu_memory`` in bytes."""

    kind = "simulated"

    def __init__(
        self, node: str, count: int, *, group_size: int, gpu_type: str, gpu_memory: int, faults: Path
    ) -> None:
        self._faults = faults
        self.xid_rules = XidRules()
        self._seen_xids: dict[int, int] = {}
        """GPU index -> the Xid that stood in the file at the last sample."""
        self._gpus = [
            GpuReport(
                index=index,
                uuid=f"SIM-{node}-{index}",
                gpu_type=gpu_type,
                gpu_memory=gpu_memory,
                nvlink_group_id=f"{node}/nvlink-{index // group_size}" if group_size else None,
            )
            for index in range(count)
        ]
        self._last: dict[int, tuple[float, float]] = {}
        """Session -> (when, its CPU seconds then)."""

    def describe(self) -> list[GpuReport]:
        """The simulated GPUs."""
        return list(self._gpus)

    def sample(self, holders: Mapping[int, int]) -> list[GpuHealth]:
        """Faults from the file, and what the work on each GPU really uses."""
        faults, shares = self._read_faults(), Counter(holders.values())
        usage = usage_of_sessions(set(shares))
        now = time.monotonic()
        busy = {session: self._busy(session, seconds, now) for session, (seconds, _) in usage.items()}
        self._last = {session: (now, seconds) for session, (seconds, _) in usage.items()}
        report = []
        for gpu in self._gpus:
            session = holders.get(gpu.index)
            parts = shares[session] if session is not None else 1
            size = usage[session][1] // parts if session is not None else 0
            bad = faults.get(str(gpu.index), _Fault())
            report.append(
                GpuHealth(
                    index=gpu.index,
                    healthy=not bad.reason,
                    reason=bad.reason,
                    utilization=min(100.0, round(busy[session] / parts, 1)) if session is not None else 0.0,
                    memory_used=min(size, gpu.gpu_memory),
                    memory_total=gpu.gpu_memory,
                    temperature_c=bad.temperature_c,
                    ecc_errors=bad.ecc_errors,
                    xid=bad.xid,
                    restart_xid=self._restart(gpu.index, bad.xid),
                )
            )
        return report

    def _restart(self, index: int, xid: int | None) -> int | None:
        """The Xid if it has just happened and asks for no more than a restart of the application."""
        is_new = xid is not None and self._seen_xids.get(index) != xid
        if xid is None:
            self._seen_xids.pop(index, None)
            return None
        self._seen_xids[index] = xid
        return xid if is_new and self.xid_rules.action(xid) is XidAction.RESTART_APP else None

    def _busy(self, session: int, seconds: float, now: float) -> float:
        """Percent of one CPU since the last sample; a session seen for the first time has no past."""
        if session not in self._last:
            return 0.0
        then, before = self._last[session]
        return max(0.0, 100.0 * (seconds - before) / max(now - then, 1e-3))

    def _read_faults(self) -> dict[str, _Fault]:
        try:
            document = json.loads(self._faults.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        entries = document.items() if isinstance(document, dict) else ()
        return {str(index): _Fault.read(entry, self.xid_rules) for index, entry in entries}

    def device_environment(self, indices: Sequence[int]) -> dict[str, str]:
        """No real device: engines read ``EMEP_GPU_INDICES`` and compute on the CPU."""
        return dict(NO_DEVICES)

    def close(self) -> None:
        """Nothing is open."""
