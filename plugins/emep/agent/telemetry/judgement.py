"""The rules and thresholds of a health check, the same for GPUs of every vendor.

A check that fails is only a check: the control plane condemns a GPU after ``health.failed_checks`` of them in
a row (policy) and takes it back after ``health.good_checks`` good ones.

What an Xid asks for is data, in ``xids``. Memory and utilization are reported and never judged: a
full or busy GPU is a GPU at work.
"""

from __future__ import annotations

from dataclasses import dataclass

from emep.agent.telemetry.xids import REMAP_FAILED, REMAPPED, TODO, XidAction, XidRules

HOTTEST_C = 95.0
"""Degrees Celsius at which a GPU counts as too hot where its driver does not tell its own limit."""
NEW_ECC_ERRORS = 1
"""Uncorrected memory errors since the agent's start that condemn a GPU. The operator who started the agent
repaired or accepted the older ones."""


@dataclass(frozen=True)
class Reading:
    """What was measured on one GPU; None: this GPU or driver does not tell."""

    xid: int | None = None
    """The last Xid that takes the GPU out of service, by the rules that it is judged by."""
    ecc_errors: int | None = None
    """Uncorrected memory errors, counted by the driver since it was loaded."""
    ecc_errors_before: int | None = None
    """The same counter when the agent started."""
    temperature_c: float | None = None
    temperature_limit_c: float | None = None
    """Where the GPU itself begins to slow down, or is critical."""
    remapping_failed: bool = False
    """Broken memory rows could not be replaced by spare ones."""
    remapping_pending: bool = False
    """Broken memory rows are replaced at the next reset of the GPU."""


STANDARD = XidRules()


def fault(reading: Reading, rules: XidRules = STANDARD) -> str:
    """Why a GPU fails its check, in a few words; empty if it passes."""
    by_remapper = XidAction.CHECK_ROW_REMAP
    if reading.remapping_failed and rules.action(REMAP_FAILED) is by_remapper:
        return "memory row remapping failed: the GPU needs to be replaced"
    if reading.remapping_pending and rules.action(REMAPPED) is by_remapper:
        return "memory rows wait to be remapped: reset the GPU"
    if reading.xid is not None and rules.takes_out(reading.xid):
        return f"Xid {reading.xid}: {TODO[rules.action(reading.xid)]}"
    if reading.ecc_errors is not None and reading.ecc_errors_before is not None:
        new = reading.ecc_errors - reading.ecc_errors_before
        if new >= NEW_ECC_ERRORS:
            return f"{new} uncorrected memory errors (ECC) since the agent started"
    limit = HOTTEST_C if reading.temperature_limit_c is None else reading.temperature_limit_c
    if reading.temperature_c is not None and reading.temperature_c >= limit:
        return f"{reading.temperature_c:.0f} C, its limit is {limit:.0f} C"
    return ""
