"""The contract of the engines: SPEC, Result, context, exit codes, and the engines by name.

The documents' JSON Schemas are in ``engines/schemas``; ``emep-engine schema spec|result|checkpoint`` prints
them. Nothing here imports torch, so that a CPU step such as ``evolve_ask`` starts in well under a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from engines.artifacts import ArtifactStore
    from engines.checkpoint import CheckpointStore

SCHEMA_VERSION = 1


class ExitCode(IntEnum):
    """Exit status of ``emep-engine run``."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 65
    """Never retried: the same input fails the same way."""
    PREEMPTED = 75
    """Checkpoint saved; resumes from it."""
    GPU_OUT_OF_MEMORY = 86


class EngineError(Exception):
    """An engine's failure in one sentence that names the file and the field; ``code`` is stable.

    ``exit_code`` tells the supervisor what kind it is (65 for bad input).
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "failed",
        file: str | None = None,
        field: str | None = None,
        exit_code: ExitCode = ExitCode.FAILED,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.file, self.field, self.exit_code = message, code, file, field, exit_code


class BadInputError(EngineError):
    """Input that can never work; exit 65."""

    def __init__(
        self, message: str, *, code: str = "bad_input", file: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(message, code=code, file=file, field=field, exit_code=ExitCode.BAD_INPUT)


class Preempted(Exception):
    """Raised by an engine that was told to stop, after its checkpoint is complete."""


@dataclass(frozen=True)
class Spec:
    """One unit of work. ``input`` holds the engine's own fields."""

    engine: str
    input: Mapping[str, Any]
    output_uri: str
    device: str = "auto"
    """auto, cpu, cuda (or cuda:N)."""
    chunked: bool = False
    """Stream in small chunks, as on a CPU worker after GPU out of memory."""
    seed: int = 0
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Output:
    """A named artifact that an engine has written, complete and renamed into place."""

    uri: str
    sha256: str
    bytes: int


@dataclass
class Outcome:
    """What an engine returns; the supervisor makes the Result document of it."""

    outputs: dict[str, Output] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    """JSON values only; non-finite numbers are refused when the Result is written."""
    resumed_from: int | None = None
    """Step of the checkpoint that the work went on from."""
    input_digests: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class Context:
    """What an engine may use beside its SPEC; the supervisor's child, or a test, builds it."""

    spec: Spec
    artifacts: ArtifactStore
    checkpoints: CheckpointStore
    stop_requested: Callable[[], bool] = lambda: False
    """True once told to yield: checkpoint, then raise ``Preempted``."""
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    """``progress("tensors", 12, 146)``: one line in the log, one update of the bar."""
    say: Callable[[str], None] = lambda line: None
    """One line for people in the log: what they should know of a result, a warning."""
    rank: int = 0
    world_size: int = 1
    """One process per GPU where an engine uses several; ranks share ``output_uri`` and split the work by
    index.
    """


class Engine(Protocol):
    """An engine is a function: SPEC's input and a context in, an Outcome out, or an EngineError."""

    def __call__(self, context: Context) -> Outcome: ...  # noqa: D102


@dataclass(frozen=True)
class EngineEntry:
    """Where an engine lives, and how many processes it may use."""

    target: str
    """``module:function``, imported only when asked for."""
    parallel: bool = False
    """One process per granted GPU, each with its rank; else one process sees all granted GPUs."""

    def load(self) -> Engine:
        """Import the engine."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]


ENGINES: dict[str, EngineEntry] = {
    "compatibility_check": EngineEntry("engines.merge.plan.compatibility:run"),
    "merge": EngineEntry("engines.merge.run.engine:run"),
    "evaluate": EngineEntry("engines.evaluation.engine:run"),
    "benchmark": EngineEntry("engines.benchmark.engine:run"),
    "compare": EngineEntry("engines.evaluation.compare:run"),
    "evolve_ask": EngineEntry("engines.evolution.ask:run"),
    "evolve_candidates": EngineEntry("engines.evolution.candidates:run", parallel=True),
    "evolve_tell": EngineEntry("engines.evolution.tell:run"),
}
