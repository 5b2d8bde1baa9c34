"""``emep-engine evaluate MODEL --tasks a.jsonl b.jsonl``: score a model on local tasks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engines.artifacts import FolderArtifactStore, path_to_uri
from engines.artifacts.target import check_kind, check_parent
from engines.checkpoint import CheckpointStore, spec_digest
from engines.checkpoint_folders import check_checkpoints
from engines.contract import Context, ExitCode, Preempted, Spec
from engines.supervisor.stop_request import StopRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder of a Hugging Face checkpoint")
    parser.add_argument("--tasks", nargs="+", required=True, metavar="TASK.jsonl", help="one item a line")
    parser.add_argument(
        "--out", type=Path, default=Path("evaluation"), help="folder to write (default: evaluation)"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace the results of another model in --out; never what no evaluation wrote",
    )
    parser.add_argument("--limit", type=int, help="use the first LIMIT items of each task")
    parser.add_argument(
        "--batch-size", type=int, default=64, help="sequences in one forward pass (default: 64)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: auto)")
    parser.add_argument("--backend", default="transformers", help="transformers, llama or auto")
    parser.add_argument("--bos", default="auto", help="BOS token before prompts: auto, always or never")
    parser.add_argument("--baseline", help="results.json of another evaluation to compare with")
    parser.add_argument(
        "--margin",
        type=float,
        help="difference from the baseline that does not matter, 0 to 1: within it models are equivalent, "
        "beyond it better or worse (default: 0)",
    )
    parser.add_argument(
        "--num-fewshot", type=int, default=0, help="examples before each question (default: 0)"
    )
    parser.add_argument(
        "--apply-chat-template",
        action="store_true",
        help="put each prompt into the tokenizer's chat template",
    )
    parser.add_argument("--seed", type=int, default=0, help="recorded with the results (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print a table; returns the exit code. Raises EngineError where it cannot."""
    from engines.evaluation.engine import run as engine

    given: dict[str, Any] = {
        "model": arguments.model,
        "tasks": list(arguments.tasks),
        "batch_size": arguments.batch_size,
        "dtype": arguments.dtype,
        "backend": arguments.backend,
        "bos": arguments.bos,
    }
    for name in ("force", "num_fewshot", "apply_chat_template"):
        if getattr(arguments, name):
            given[name] = getattr(arguments, name)
    for name in ("limit", "baseline", "margin"):
        if getattr(arguments, name) is not None:
            given[name] = getattr(arguments, name)
    check_kind(arguments.out)
    check_parent(arguments.out.absolute())
    check_checkpoints(arguments.out / ".checkpoints")
    uri = path_to_uri(arguments.out)
    spec = Spec("evaluate", given, uri, device=arguments.device, seed=arguments.seed)
    stop = StopRequest()
    context = Context(
        spec=spec,
        artifacts=FolderArtifactStore(uri),
        checkpoints=CheckpointStore(f"{uri}/.checkpoints", spec_digest(spec)),
        stop_requested=stop.is_set,
    )
    import signal

    before = signal.signal(signal.SIGTERM, stop.on_signal)
    try:
        outcome = engine(context)
    except Preempted as error:
        sys.stderr.write(f"emep-engine: {error}; call again to go on\n")
        return int(ExitCode.PREEMPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.stdout.write(table(outcome.metrics) + f"\nresults: {outcome.outputs['results'].uri}\n")
    sys.stdout.flush()
    for warning in outcome.metrics["warnings"]:
        sys.stderr.write(f"emep-engine: warning: {warning}\n")
    return int(ExitCode.DONE)


def table(metrics: dict[str, Any]) -> str:
    """Tasks and the combined score, a line each."""
    lines = []
    for name, entry in metrics.items():
        if name in {"skills", "comparison", "warnings"}:
            continue
        metric = "acc" if "acc" in entry else "bits_per_byte"
        error = entry[f"{metric}_stderr"]
        shown = "" if error is None else f" ± {error:.4f}"
        lines.append(f"{name:<24} {metric} {entry[metric]:.4f}{shown}  n={entry['n']}")
    comparison = metrics.get("comparison")
    if comparison:
        error = comparison["stderr"]
        shown = "" if error is None else f" ± {error:.4f}"
        lines.append(
            f"{'difference':<24} {comparison['delta']:+.4f}{shown}  n={comparison['n']}  "
            f"{comparison['verdict']} (margin {comparison['margin']:g})"
        )
    return "\n".join(lines)
