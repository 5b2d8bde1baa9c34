"""Names of the engines that agents can run; the engines themselves are not imported by the control plane."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from emep.exceptions import InvalidError
from emep.policy.errors import suggest

ENGINE_NAMES = (
    "compatibility_check",
    "merge",
    "evolve_ask",
    "evolve_candidates",
    "evolve_tell",
    "evaluate",
    "benchmark",
    "compare",
)
"""Those that ship with EMEP; ``[emep] extra_engines`` names a site's own."""


def check_engine(spec: dict[str, Any] | None, extra: Collection[str] = ()) -> None:
    """Raise InvalidError for a SPEC whose engine no agent knows: it would be granted GPUs only to fail."""
    engine = (spec or {}).get("engine")
    if not isinstance(engine, str) or not engine:
        raise InvalidError(
            "spec: a job with runtime agent needs the SPEC of an engine, named in spec.engine",
            field="spec" if spec is None else "spec.engine",
        )
    if engine in ENGINE_NAMES or engine in extra:
        return
    known = [*ENGINE_NAMES, *extra]
    near = suggest(engine, known)
    listed = "" if near.startswith("use one of") else f" engines are {', '.join(known)}"
    raise InvalidError(
        f"spec.engine: {engine[:80]!r} is no engine, {near}{listed} "
        "(one of your own is named in [emep] extra_engines)",
        field="spec.engine",
    )
