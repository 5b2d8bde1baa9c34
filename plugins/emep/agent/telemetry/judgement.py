"""What makes a GPU bad: every rule and threshold of a health check, in one place, whatever the vendor.

A check that fails is only a check: the control plane condemns a GPU after ``health.failed_checks`` of them in
a row (policy) and takes it back after ``health.good_checks`` good ones.

Facts about Xid numbers: NVIDIA's "Xid Errors" guide. Memory and utilization are reported and never judged: a
full or busy GPU is a GPU at work.
"""

from __future__ import annotations

from dataclasses import dataclass

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program's own fault causes; the GPU is well. All others need a reset or a technician."""
HOTTEST_C = 95.0
"""Degrees Celsius at which a GPU counts as too hot where its driver does not tell its own limit."""
NEW_ECC_ERRORS = 1
"""Uncorrected memory errors since the agent's start that condemn a GPU; older ones were repaired or accepted
by whoever started the agent."""


@dataclass(frozen=True)
class Reading:
    """What was measured on one GPU; None: this GPU or driver does not tell."""

    xid: int | None = None
    """The last Xid that is not the application's fault."""
    ecc_errors: int | None = None
    """Uncorrected memory errors, counted by the driver since it was loaded."""
    ecc_errors_before: int | None = None
    """The same counter when the agent started."""
    temperature_c: float | None = None
    temperature_limit_c: float | None = None
    """Where the GPU itself begins to slow down, or is critical."""
    remapping_failed: bool = False
    """Broken memory rows could not be replaced by spare ones."""


def is_hardware_xid(xid: int) -> bool:
    """Whether an Xid says that the GPU itself is in trouble."""
    return xid not in APPLICATION_XIDS


def fault(reading: Reading) -> str:
    """Why a GPU fails its check, in a few words; empty where it passes."""
    if reading.remapping_failed:
        return "memory row remapping failed: the GPU needs to be replaced"
    if reading.xid is not None and is_hardware_xid(reading.xid):
        return f"Xid {reading.xid}"
    if reading.ecc_errors is not None and reading.ecc_errors_before is not None:
        new = reading.ecc_errors - reading.ecc_errors_before
        if new >= NEW_ECC_ERRORS:
            return f"{new} uncorrected memory errors (ECC) since the agent started"
    limit = HOTTEST_C if reading.temperature_limit_c is None else reading.temperature_limit_c
    if reading.temperature_c is not None and reading.temperature_c >= limit:
        return f"{reading.temperature_c:.0f} C, its limit is {limit:.0f} C"
    return ""
