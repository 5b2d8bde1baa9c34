"""What is thought of a node because of how jobs have ended on it."""

from __future__ import annotations

from enum import Enum


class CheckState(str, Enum):
    """What is thought of a node that has failed jobs; others have none (an empty text)."""

    WATCHED = "watched"
    """It has quick failures, too few to take it out."""
    OUT = "out"
    """It gets nothing until its cool-down is over."""
    PROBATION = "probation"
    """It gets one job at a time until one has completed."""
