"""Limits what an engine's process may read and write to the folders that the control plane set for its job.

``confine`` is called in an engine's process before it opens any path that a user named. From then on the
kernel (Landlock) keeps the process and its children inside, whatever links are made in the meantime.
``check_read`` and ``check_write`` resolve a path first, to report in one sentence what is wrong with it. A
process without confines, such as a person's own command line, is not limited.
"""

from __future__ import annotations

from engines.confinement.confines import VARIABLE, Confines, OutsideError, resolved
from engines.confinement.process import check_read, check_write, confine, current, refused_by_the_system

__all__ = [
    "VARIABLE",
    "Confines",
    "OutsideError",
    "check_read",
    "check_write",
    "confine",
    "current",
    "refused_by_the_system",
    "resolved",
]
