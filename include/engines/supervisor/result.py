"""The Result document: combines the ranks' outcomes into one JSON file, written in one step."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.contract import SCHEMA_VERSION, ExitCode
from engines.schemas import validate

MESSAGE_BYTES = 4096
"""What Kubernetes keeps of a termination message."""
XCOM = Path("/airflow/xcom")
STATUS: dict[int, str] = {ExitCode.DONE: "done", ExitCode.PREEMPTED: "preempted"}


def result_path(environment: Mapping[str, str], spec_path: Path) -> Path:
    """Where the Result goes: ``EMEP_RESULT_PATH``, a pod's XCom folder, else beside the SPEC."""
    if environment.get("EMEP_RESULT_PATH"):
        return Path(environment["EMEP_RESULT_PATH"])
    return XCOM / "return.json" if XCOM.is_dir() else spec_path.absolute().parent / "result.json"


def reduce_outcomes(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One outcome of all ranks', in rank order.

    Outputs, digests and versions are united (a lower rank's entry stands). Metrics are rank 0's, with the
    numbers under ``counts`` added over the ranks. ``resumed_from`` is the earliest step that any rank went on
    from.
    """
    first = outcomes[0]
    united: dict[str, Any] = {}
    for key in ("outputs", "input_digests", "versions"):
        united[key] = {name: value for outcome in reversed(outcomes) for name, value in outcome[key].items()}
    metrics = dict(first["metrics"])
    if any("counts" in outcome["metrics"] for outcome in outcomes):
        counts: dict[str, Any] = {}
        for outcome in outcomes:
            for name, value in outcome["metrics"].get("counts", {}).items():
                counts[name] = counts.get(name, 0) + value
        metrics["counts"] = counts
    steps = [outcome["resumed_from"] for outcome in outcomes if outcome["resumed_from"] is not None]
    return {**united, "metrics": metrics, "resumed_from": min(steps, default=None)}


def make_result(
    engine: str | None,
    exit_code: int,
    *,
    seconds: float,
    outcome: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
    epoch: int | None = None,
) -> tuple[int, dict[str, Any]]:
    """Exit code and Result document. ``epoch``: the lease's, None outside one.

    Metrics that hold NaN or infinity turn success into a failure that says where.
    """
    from engines.artifacts.store import non_finite_path

    outcome = outcome or {}
    bad = non_finite_path(outcome.get("metrics", {}), "metrics")
    if bad is not None:
        exit_code, outcome = ExitCode.FAILED, {}
        error = make_error("nonfinite_metric", f"{bad} is not a finite number", field=bad)
    result = {
        "schema_version": SCHEMA_VERSION,
        "engine": engine,
        "status": STATUS.get(exit_code, "failed"),
        "exit_code": int(exit_code),
        "outputs": dict(outcome.get("outputs", {})),
        "metrics": dict(outcome.get("metrics", {})),
        "error": dict(error) if error else None,
        "seconds": round(seconds, 3),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "resumed_from": outcome.get("resumed_from"),
        "versions": dict(outcome.get("versions", {})),
        "input_digests": dict(outcome.get("input_digests", {})),
    }
    if epoch is not None:
        result["epoch"] = epoch
    validate("result", result)
    return int(exit_code), result


def make_error(
    code: str, message: str, *, file: str | None = None, field: str | None = None
) -> dict[str, str | None]:
    """The Result's ``error``."""
    return {"code": code, "message": message, "file": file, "field": field}


def leave_message(path: Path, result: Mapping[str, Any]) -> None:
    """Leave the Result as a container's termination message, where it is short enough for one; best effort.

    Written in place: the file is the kubelet's mount, which cannot be renamed over.
    """
    from engines.artifacts import canonical_json

    text = canonical_json(result)
    if len(text) <= MESSAGE_BYTES:
        with suppress(OSError), path.open("r+b") as file:
            file.write(text)
            file.truncate()


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the Result in one step."""
    from engines.artifacts import canonical_json, write_atomically

    write_atomically(path, canonical_json(result) + b"\n")
