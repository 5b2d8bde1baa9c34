"""The action for each Xid, as data: NVIDIA's own recovery actions.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com, deploy/xid-errors), column
"Resolution Bucket (Immediate Action)" for A100 and newer: RESTART_APP is ``restart_app``, RESET_GPU
``reset``, RESTART_BM and RESTART_VM ``reboot``, IGNORE ``ignore``. Where the catalog names a workflow: 48 (an
uncorrected memory error), 74 and 144 to 150 (NVLink) end in a reset unless a person finds otherwise; 45 says
that a program was ended, and 154 and 171 to 172 accompany other Xids, which decide. 63 and 64 (rows of memory
remapped) are judged by what the remapper itself says: NVIDIA, "GPU Memory Error Management".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class XidAction(str, Enum):
    """What is to be done after an Xid; the words are those of the policy's ``xids``."""

    IGNORE = "ignore"
    """Nothing: the GPU is well, and work that it ended is judged by its own exit status."""
    RESTART_APP = "restart_app"
    """Work on the GPU is told to checkpoint and goes back to the queue; the GPU stays in service."""
    RESET = "reset"
    """The GPU is out of service until it was reset and its agent started again."""
    REBOOT = "reboot"
    """Likewise until the node was rebooted."""
    CHECK_ROW_REMAP = "check_row_remap"
    """The GPU is out of service while rows wait to be remapped (63), or could not be (64)."""


CONTAINED = 94
"""A memory error that ended the program which met it, and harms no other."""
REMAPPED, REMAP_FAILED = 63, 64
"""The Xids whose actions say whether a pending and a failed remapping count."""
_IGNORE = (14, 37, 38, 43, 44, 45, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154, 157, 160, 161)
_RESTART_APP = (
    8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94,
    *range(96, 106), *range(126, 136), 139,
)  # fmt: skip
_RESET = (46, 48, 62, 74, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158)
_REBOOT = (79, 151)
XID_ACTIONS: Mapping[int, XidAction] = {
    **dict.fromkeys((*_IGNORE, 171, 172), XidAction.IGNORE),
    **dict.fromkeys(_RESTART_APP, XidAction.RESTART_APP),
    **dict.fromkeys(_RESET, XidAction.RESET),
    **dict.fromkeys(_REBOOT, XidAction.REBOOT),
    **dict.fromkeys((REMAPPED, REMAP_FAILED), XidAction.CHECK_ROW_REMAP),
}
TODO: Mapping[XidAction, str] = {
    XidAction.RESET: "reset the GPU",
    XidAction.REBOOT: "reboot the node",
}
"""The actions that take a GPU out of service, and what a person has to do then."""


class XidRules:
    """The table, with the policy's own actions over it."""

    def __init__(self, overrides: Mapping[int, str] | None = None) -> None:
        """``overrides``: Xid -> action. Raises ValueError for a word that is no action."""
        self._overrides = {xid: XidAction(action) for xid, action in (overrides or {}).items()}

    def action(self, xid: int) -> XidAction:
        """The action for an Xid. An unknown Xid takes its GPU out of service, for a person to look at it."""
        return self._overrides.get(xid) or XID_ACTIONS.get(xid, XidAction.RESET)

    def takes_out(self, xid: int) -> bool:
        """Whether the GPU is out of service after this Xid, whatever else is measured on it."""
        return self.action(xid) in TODO
