"""Every document on the wire by its name, for callers that know an answer's name only."""

from __future__ import annotations

from types import ModuleType

from pydantic import BaseModel

from emep.wire import allocations, base, health, jobs, leases, nodes, operations

_MODULES: tuple[ModuleType, ...] = (base, jobs, nodes, allocations, leases, operations, health)


def document(name: str) -> type[BaseModel]:
    """The model of that name. Raises KeyError where no module has one."""
    for module in _MODULES:
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    raise KeyError(name)
