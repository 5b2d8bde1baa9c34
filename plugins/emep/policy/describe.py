"""A policy as plain values, in the shape of the file it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from emep.policy.model import Policy


def describe(policy: Policy) -> dict[str, object]:
    """JSON-serialisable mapping; ``parse_policy`` makes an equal policy of it (but for ``named``)."""
    result = {
        item.name: _plain(getattr(policy, item.name))
        for item in dataclasses.fields(policy)
        if item.init and item.name != "named"
    }
    result["reservations"] = "all" if policy.reservations is None else policy.reservations
    for rules in _mappings(result["queues"]):
        if rules["pools"] is None:
            rules["pools"] = "all"
    return result


def _mappings(value: object) -> list[dict[str, object]]:
    return list(value.values()) if isinstance(value, dict) else []


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value) if item.init
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
