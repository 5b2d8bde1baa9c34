"""Arguments that several operators share: the fields of a job, and the policy's retries.

Each is part of the signature of ``__init__``, so ``default_args``, ``partial`` and ``expand`` know it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from emep.operators.retries import JITTER, MAX_RETRY_DELAY, RETRIES, RETRY_DELAY
from emep.wire.job_fields import JOB_FIELDS

OPERATOR_FIELDS = tuple(name for name in JOB_FIELDS if name != "queue")
"""``queue`` is the operators' ``job_queue``, because Airflow's own ``queue`` means another."""
_DEFAULTS: dict[str, Any] = {"priority": "normal", "project": "default"}
_RETRIES: dict[str, Any] = {
    "retries": RETRIES.max,
    "retry_delay": RETRY_DELAY,
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": MAX_RETRY_DELAY,
    "retry_policy": JITTER,
}
Init = TypeVar("Init", bound=Callable[..., None])


def takes_job_fields(**defaults: Any) -> Callable[[Init], Init]:
    """Make every field of a job a keyword argument of an operator's ``__init__``, and an attribute.

    ``defaults`` replace None, which leaves a field to the policy.
    """
    values = dict.fromkeys(OPERATOR_FIELDS) | _DEFAULTS | defaults

    def decorate(init: Init) -> Init:
        @functools.wraps(init)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            for name, default in values.items():
                setattr(self, name, kwargs.pop(name, default))
            init(self, *args, **kwargs)

        return cast(Init, _with_arguments(wrapper, init, values))

    return decorate


def retries_by_policy(init: Init) -> Init:
    """Make the policy file's retries and pauses the defaults of Airflow's own arguments."""

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**_RETRIES, **kwargs})

    return cast(Init, _with_arguments(wrapper, init, _RETRIES))


def _with_arguments(wrapper: Any, init: Callable[..., None], values: Mapping[str, Any]) -> Any:
    """The wrapper, with keyword arguments for ``values`` added to the signature of ``init``."""
    signature = inspect.signature(init)
    own = list(signature.parameters.values())
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=values[name]) for name in values]
    rest = [parameter for parameter in own if parameter.kind is inspect.Parameter.VAR_KEYWORD]
    named = [parameter for parameter in own if parameter not in rest]
    wrapper.__signature__ = signature.replace(parameters=[*named, *added, *rest])
    return wrapper
