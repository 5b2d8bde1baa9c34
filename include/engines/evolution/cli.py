"""``emep-engine evolve RECIPE.yaml OUT``: a whole evolution on this machine."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from engines.artifacts import path_to_uri, uri_to_path
from engines.artifacts.target import check_kind, check_parent
from engines.checkpoint_folders import check_checkpoints
from engines.contract import BadInputError, ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("recipe", metavar="RECIPE.yaml", help="a recipe with parameters to search")
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="folder of the run; a run that is there goes on"
    )
    parser.add_argument("--tasks", nargs="+", required=True, metavar="TASK.jsonl", help="items to search on")
    parser.add_argument(
        "--report-tasks",
        nargs="+",
        metavar="TASK.jsonl",
        help="items that the search must not see: after it the best recipe, its start, the models and the "
        "best uniform average are scored on them, in OUT/report/scoreboard.json and .txt",
    )
    parser.add_argument("--generations", type=int, default=5, help="default: 5")
    parser.add_argument("--population", type=int, default=30, help="candidates per generation (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of search and merges (default: 0)")
    parser.add_argument(
        "--objective",
        default="acc",
        help="acc, acc_norm, answer_logprob or bits_per_byte; "
        "with weights: '{metric: acc, weights: {SKILL: 2, SKILL: 1}}' (default: acc)",
    )
    parser.add_argument("--limit", type=int, help="use the first LIMIT items of each task")
    parser.add_argument(
        "--batch-size", type=int, default=64, help="sequences in one forward pass (default: 64)"
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: auto)")
    parser.add_argument(
        "--num-fewshot", type=int, default=0, help="examples before each question (default: 0)"
    )
    parser.add_argument(
        "--apply-chat-template",
        action="store_true",
        help="put each prompt into the tokenizer's chat template",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes that share a generation on the CPU (default: 1)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Search; returns the exit code. Raises EngineError where it cannot."""
    from engines.evolution.loop import LoopSettings, evolve

    for name in ("generations", "processes"):
        if getattr(arguments, name) < 1:
            raise BadInputError(f"--{name}: must be at least 1", field=name)
    check_kind(arguments.out)
    check_parent(arguments.out.absolute())
    check_checkpoints(arguments.out / ".checkpoints")
    extra: dict[str, Any] = {"objective": arguments.objective, "batch_size": arguments.batch_size}
    extra["dtype"] = arguments.dtype
    for name in ("num_fewshot", "apply_chat_template"):
        if getattr(arguments, name):
            extra[name] = getattr(arguments, name)
    if arguments.limit is not None:
        extra["limit"] = arguments.limit
    if arguments.report_tasks:
        extra["report_tasks"] = arguments.report_tasks
    settings = LoopSettings(
        run_uri=path_to_uri(arguments.out),
        recipe=arguments.recipe,
        tasks=tuple(arguments.tasks),
        generations=arguments.generations,
        population=arguments.population,
        seed=arguments.seed,
        processes=arguments.processes,
        device=arguments.device,
        extra=extra,
    )
    _warn(arguments.recipe)
    try:
        metrics = evolve(settings, _line)
        if arguments.report_tasks:
            _report(settings.run_uri, arguments.report_tasks, arguments.device)
    except KeyboardInterrupt:
        sys.stderr.write(
            "emep-engine: stopped; what has a result is kept, the same command goes on from there\n"
        )
        return int(ExitCode.PREEMPTED)
    for warning in metrics["warnings"]:
        sys.stderr.write(f"emep-engine: warning: {warning}\n")
    sys.stdout.write(
        f"best {metrics['best_score']:.4f} ({metrics['best_name']}) after {metrics['evaluations']} "
        f"evaluations: {arguments.out / 'best.yaml'}\n"
    )
    return int(ExitCode.DONE)


def _warn(recipe: str) -> None:
    """Warnings of the recipe's plan; errors of the recipe are left to the evolution itself."""
    from engines.merge.plan.compatibility import check_recipe

    with contextlib.suppress(BadInputError):
        for warning in check_recipe(recipe)[0].warnings:
            sys.stderr.write(f"emep-engine: warning: {warning}\n")


def _report(run_uri: str, tasks: list[str], device: str) -> None:
    from engines.evolution.report import write_report

    outcome = write_report(run_uri, tasks, device=device)
    board = uri_to_path(outcome.outputs["table"].uri)
    sys.stdout.write(f"{board.read_text(encoding='utf-8')}report: {board}\n")


def _line(metrics: dict[str, Any]) -> None:
    """One generation: its own best and mean, and the best so far, baselines included."""
    sys.stdout.write(
        f"generation {metrics['generation']}: best {_score(metrics['generation_best'])}, "
        f"mean {_score(metrics['generation_mean'])}, so far {metrics['best_score']:.4f} "
        f"({metrics['best_name']}), {metrics['evaluations']} evaluations, {metrics['failed']} failed, "
        f"sigma {metrics['sigma']:.3f}\n"
    )
    sys.stdout.flush()


def _score(value: float | None) -> str:
    return "-" if value is None else format(value, ".4f")
