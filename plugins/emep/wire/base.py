"""The parts of the documents on the wire: types with their bounds, states, and rules for what may be stored.

Imports neither Airflow nor SQLAlchemy.
"""

from __future__ import annotations

import math
import re
from contextvars import ContextVar
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from emep.wire.units import parse_duration, parse_memory


def _moment(value: Any) -> Any:
    if not isinstance(value, str | datetime):
        raise ValueError(f"a time is text such as 2025-01-31T12:00:00Z, not {value!r:.80}")
    return value


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def check_printable(text: str) -> str:
    """A name or a note without line ends, control characters and marks that turn the direction of writing.

    Names end up in logs, environments, metrics and on terminals, where such a character would begin a line of
    its own or hide what stands there. Raises ValueError.
    """
    found = _CONTROL.search(text)
    if found is not None:
        raise ValueError(f"has the control character U+{ord(found[0]):04X}; use printable text")
    return text


# Bounds that every database can hold; no job runs for a century or needs 4 EiB of memory.
Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3.2e9)]
Memory = Annotated[int, BeforeValidator(parse_memory), Field(ge=0, le=2**62)]
Moment = Annotated[AwareDatetime, BeforeValidator(_moment), Field(strict=False)]
Printable = AfterValidator(check_printable)
Name = Annotated[str, Field(min_length=1, max_length=250), Printable]
Text = Annotated[str, Field(max_length=250), Printable]
Labels = Annotated[dict[Name, Text], Field(max_length=200)]
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
MAX_DEPTH = 100
"""Of nested lists and mappings in free-form fields."""
STORABLE_IS_CHECKED: ContextVar[bool] = ContextVar("STORABLE_IS_CHECKED", default=False)
"""The API has checked the whole document before it is validated: a large one, in a thread."""


class JobState(str, Enum):
    """States of a job; the moves between them are in ``emep.ledger.states``."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    YIELDING = "yielding"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    DEAD = "dead"


ENDED_STATES = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.REJECTED,
        JobState.EXPIRED,
        JobState.DEAD,
    }
)


class Directive(str, Enum):
    """What a heartbeat's answer tells the supervisor to do."""

    CONTINUE = "continue"
    CHECKPOINT_AND_EXIT = "checkpoint_and_exit"
    ABORT = "abort"


def check_storable(value: Any, path: str = "", depth: int = 0) -> None:
    """Refuse what JSON's grammar or Python's reader lets through but no database or answer can carry.

    Raises ValueError that names the path: NUL and lone surrogates in texts, NaN and infinities, integers
    beyond 64 bits, nesting deeper than ``MAX_DEPTH``.
    """
    where = path or "the document"
    if depth > MAX_DEPTH:
        raise ValueError(f"{where}: nested more than {MAX_DEPTH} deep")
    if isinstance(value, str) and _UNSTORABLE.search(value):
        raise ValueError(f"{where}: has a NUL or half a surrogate pair; use printable text")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} is not a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where}: an integer of more than 64 bits")
    if isinstance(value, dict):
        for key, item in value.items():
            check_storable(key, f"a key of {where}", depth + 1)
            check_storable(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_storable(item, f"{path}[{index}]", depth + 1)


class Request(BaseModel):
    """Base of what comes in: unknown fields are refused by name, and no value is taken for another's type.

    JSON has numbers, texts and truth values of its own, so ``true`` is no 1, ``"2"`` and ``2.0`` are no 2.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        if isinstance(value, dict) and not STORABLE_IS_CHECKED.get():
            check_storable(value)
        return value
