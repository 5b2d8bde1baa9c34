"""``emep-engine merge``: the merge engine in this process, with progress, and the plan of ``--dry-run``."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.artifacts import path_to_uri
from engines.checkpoint_folders import check_checkpoints, remove_checkpoints
from engines.contract import EngineError, ExitCode, Preempted, Spec
from engines.merge.plan.estimate import describe
from engines.merge.plan.plan import make_plan, open_models
from engines.merge.recipe.parse import load_recipe, parse_recipe
from engines.merge.run.output import OutputFolder, hidden_checkpoints
from engines.supervisor.progress import Progress


def merge_command(
    *,
    config: str | Mapping[str, Any],
    out: Path,
    seed: int,
    device: str,
    chunked: bool,
    dry_run: bool,
    options: Mapping[str, Any],
) -> int:
    """Merge, or only print the plan; returns the exit code. Raises BadInputError for what cannot work.

    SIGTERM and Ctrl-C checkpoint and end with exit code 75; the same command again goes on from there.
    """
    options = dict(options)
    config = _allowing(config, options.pop("allow_mismatch", ()))
    target = Path(os.path.abspath(out))  # resolve() would follow links, absolute() keeps '..'
    recipe = parse_recipe(config)
    plan = make_plan(recipe, open_models(recipe), strict=bool(options.get("strict")))
    for warning in plan.warnings:
        sys.stderr.write(f"emep-engine: warning: {warning}\n")
    if dry_run:
        sys.stdout.write(describe(plan, device, chunked=chunked))
        return int(ExitCode.DONE)
    OutputFolder(target, "").check(plan.input_paths(), plan.output_bytes, force=bool(options.get("force")))
    check_checkpoints(hidden_checkpoints(target))
    return _merge(config, target, seed, device, chunked, options)


def _allowing(config: str | Mapping[str, Any], fields: Sequence[str]) -> str | Mapping[str, Any]:
    """The recipe with more differences allowed than it says itself."""
    if not fields:
        return config
    recipe, _ = load_recipe(config)
    own = recipe.get("allow_mismatch") or []
    return recipe | {"allow_mismatch": [*([own] if isinstance(own, str) else own), *fields]}


def _merge(
    config: str | Mapping[str, Any],
    target: Path,
    seed: int,
    device: str,
    chunked: bool,
    options: Mapping[str, Any],
) -> int:
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    # Only now: a recipe that cannot work is refused before torch is loaded.
    from engines.merge.run.engine import MergeInput, cli_context, merge_to_folder

    fields = {"recipe": config, "output_name": target.name, **options}
    spec = Spec("merge", fields, path_to_uri(target.parent), device=device, chunked=chunked, seed=seed)
    told: list[int] = []
    checkpoints: Path | None = None
    progress = Progress(sys.stdout)
    handlers = {
        name: signal.signal(name, lambda number, frame: told.append(number))
        for name in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        context = cli_context(
            spec,
            target,
            lambda: bool(told),
            lambda what, done, total: progress.show(0, 1, {"what": what, "done": done, "total": total}),
        )
        checkpoints = context.checkpoints.folder
        outcome = merge_to_folder(context, MergeInput.parse(fields), target)
    except Preempted as error:
        sys.stderr.write(f"emep-engine: stopped {error}; the same command goes on from there\n")
        checkpoints = None
        return int(ExitCode.PREEMPTED)
    except EngineError as error:
        if error.code in {"busy", "stale_epoch"}:
            checkpoints = None  # they are another process's
        raise
    finally:
        progress.close()
        for name, handler in handlers.items():
            signal.signal(name, handler)
        if checkpoints is not None:
            remove_checkpoints(checkpoints)
    model = outcome.outputs["model"]
    sys.stdout.write(f"{target} ({model.bytes / 1e6:,.1f} MB, sha256 {model.sha256})\n")
    return int(ExitCode.DONE)
