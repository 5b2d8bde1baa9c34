"""The control plane's list of engines, and checks of what EMEP can start; it imports no engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from emep.wire.errors import InvalidError
from emep.wire.suggest import suggest

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

PARALLEL_ENGINES = frozenset({"evolve_candidates"})
"""Those that have a process for each GPU; the others use one GPU (``parallel`` in ``engines.contract``)."""
MESSAGE_QUEUES = ("artifact", "tracker")
"""Queues of EMEP's own messages, which hold no GPUs and take no jobs."""


def check_engine(spec: dict[str, Any] | None, extra: Collection[str] = ()) -> None:
    """Raise InvalidError for a SPEC whose engine no agent knows: its job would get GPUs and then fail."""
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


def check_startable(
    *, runtime: str, queue: str = "", engine: str | None = None, gpus: int = 0, nodes: int | None = None
) -> None:
    """Raise InvalidError for a request that EMEP cannot start; it would hold GPUs in vain.

    Only ``external`` work, which its asker starts, may have several nodes: an agent or a pod would run the
    whole engine once on each. An engine that EMEP knows to use one GPU gets no more.
    """
    if queue in MESSAGE_QUEUES:
        raise InvalidError(
            f"queue: {queue} is for EMEP's own messages and takes no jobs; use a queue such as merge or eval",
            field="queue",
        )
    if runtime == "external":
        return
    if nodes is not None and nodes > 1:
        raise InvalidError(
            f"node_count: a job of runtime {runtime} runs on one node, and {nodes} were asked for. Ask for "
            "GPUs of one node; only runtime external, whose work you start yourself, may have several nodes",
            field="node_count",
        )
    if gpus > 1 and engine in ENGINE_NAMES and engine not in PARALLEL_ENGINES:
        raise InvalidError(
            f"gpu_count: engine {engine} uses one GPU, and {gpus} were asked for. Ask for 1, or for 0 to run "
            "on CPUs",
            field="gpu_count",
        )
