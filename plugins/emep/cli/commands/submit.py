"""``emep submit``: start a DAG run over Airflow's API, and follow it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from emep.cli.common import UsageError, add_api_argument, connect, print_json

if TYPE_CHECKING:
    from emep.client import EmepClient

DESCRIPTION = """\
Start a merge, an evolution, an evaluation or the whole pipeline, and follow it.

The same fields as the DAG's trigger form and its API conf; whatever has no
option of its own is given by --set.
"""
EPILOG = """\
examples:
  emep submit recipe.yaml --kind merge --gpus 1 --wait
  emep submit search.yaml --kind evolve --tasks gsm.jsonl,arc.jsonl --generations 8
  emep submit --kind evaluate --model /models/llama --tasks gsm.jsonl --limit 200
exit status with --wait: 0 the run succeeded, 1 it failed.
"""
KINDS = {
    "merge": "emep_merge",
    "evolve": "emep_evolve",
    "evaluate": "emep_evaluate",
    "pipeline": "emep_pipeline",
}
GPUS_HELP = "GPUs of each allocation of candidates (evolve, pipeline); a merge or an evaluation uses one"
_FIELDS = {
    "priority": "priority",
    "gpus": "gpu_count",
    "gpu_memory_min": "gpu_memory_min",
    "gpu_type": "gpu_type",
    "max_duration": "max_duration",
    "project": "project",
    "experiment": "experiment_id",
    "model": "model",
    "baseline": "baseline",
    "margin": "margin",
    "dtype": "dtype",
    "num_fewshot": "num_fewshot",
    "output_name": "output_name",
    "generations": "generations",
    "population": "population",
    "batch": "batch",
    "limit": "limit",
    "seed": "seed",
}
"""Option -> field of the run's conf."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, the kind of run, and its fields."""
    parser.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE.yaml",
        help="a mergekit merge configuration, or its URI (not for evaluate)",
    )
    parser.add_argument("--kind", choices=list(KINDS), required=True, help="what to run")
    what = parser.add_argument_group("what")
    what.add_argument("--model", metavar="PATH", help="the model to evaluate")
    what.add_argument(
        "--tasks", action="append", default=[], metavar="FILE[,..]", help="JSONL tasks; may be repeated"
    )
    what.add_argument(
        "--report-tasks",
        action="append",
        default=[],
        metavar="FILE[,..]",
        help="tasks that the search never sees",
    )
    what.add_argument("--limit", type=int, metavar="N", help="items of each task")
    what.add_argument("--baseline", metavar="URI", help="results to compare with")
    what.add_argument(
        "--margin",
        type=float,
        metavar="X",
        help="difference from the baseline that does not matter, 0 to 1 (default: 0)",
    )
    what.add_argument(
        "--dtype", metavar="TYPE", help="scores are computed in auto, float32, bfloat16 or float16"
    )
    what.add_argument("--num-fewshot", type=int, metavar="N", help="examples before each question")
    what.add_argument(
        "--apply-chat-template", action="store_true", help="put prompts into the tokenizer's chat template"
    )
    what.add_argument("--output-name", metavar="NAME", help="name of the merged model's folder")
    what.add_argument("--generations", type=int, metavar="N", help="generations of the search")
    what.add_argument("--population", type=int, metavar="N", help="candidates of a generation")
    what.add_argument("--batch", type=int, metavar="N", help="candidates that share an allocation")
    what.add_argument("--seed", type=int, metavar="N", help="seed of everything random")
    gpus = parser.add_argument_group("GPUs and order")
    gpus.add_argument("--project", help="whose fair share is charged")
    gpus.add_argument("--priority", metavar="CLASS", help="critical, high, normal or low")
    gpus.add_argument("--gpus", type=int, metavar="N", help=GPUS_HELP)
    gpus.add_argument(
        "--gpu-memory-min", metavar="SIZE", help="memory that every GPU must have, such as 40Gi"
    )
    gpus.add_argument("--gpu-type", metavar="NAME", help="product label that every GPU must have")
    gpus.add_argument("--nvlink-required", action="store_true", help="every GPU of a job in one NVLink group")
    gpus.add_argument("--max-duration", metavar="TIME", help="hard limit of each run of a job, such as 2h")
    gpus.add_argument("--experiment", metavar="NAME", help="experiment_id, carried on every message")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any field of the form; VALUE is YAML; may be repeated",
    )
    parser.add_argument("--wait", action="store_true", help="follow the run to its end")
    parser.add_argument("--json", action="store_true", help="print the DAG run as Airflow answered it")
    add_api_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Start the run. Raises UsageError for a wrong recipe or option."""
    from emep.cli import WRONG_USE, fail
    from emep.client import EmepApiError, calls

    dag_id, conf = KINDS[args.kind], read_conf(args)
    with connect(args) as client:
        _check_dag(client, dag_id)
        try:
            started = client.raw(calls.trigger_dag(dag_id, conf))
        except EmepApiError as error:
            if error.status in (400, 422):
                # Airflow adds the whole schema of the field, after an empty line.
                sentence = str(error).partition("\n\n")[0]
                return fail(f"{dag_id} refuses these fields: {sentence}", WRONG_USE)
            raise
        run_id = started["dag_run_id"]
        if args.wait:
            from emep.cli.follow import follow_run

            # Progress is for people; with --json the answer alone is on standard output.
            finished = follow_run(client, dag_id, run_id, output=sys.stderr if args.json else sys.stdout)
            if args.json:
                print_json(finished)
            return 0 if finished["state"] == "success" else 1
    if args.json:
        print_json(started)
    else:
        print(f"{dag_id} {run_id} is {started['state']}: follow it with `emep queue`, or in the UI:")
        print(f"{client.settings.airflow_url}/dags/{dag_id}/runs/{quote(run_id, safe='')}")
    return 0


def _check_dag(client: EmepClient, dag_id: str) -> None:
    """Raises UsageError if the DAG does not exist, or would never run the request."""
    from emep.client import EmepApiError, calls

    try:
        dag = client.raw(calls.dag(dag_id))
    except EmepApiError as error:
        if error.status != 404:
            raise
        raise UsageError(f"Airflow at {client.settings.airflow_url} has no DAG {dag_id}") from error
    if dag.get("is_paused"):
        raise UsageError(f"{dag_id} is paused: unpause it in the UI or with `airflow dags unpause {dag_id}`")


def read_conf(args: argparse.Namespace) -> dict[str, Any]:
    """The run's conf from the options, the recipe and ``--set``. Raises UsageError naming what is wrong."""
    _check_kind(args)
    conf: dict[str, Any] = {}
    if args.recipe:
        conf["recipe"] = read_recipe(args.recipe)
    for option, field in _FIELDS.items():
        value = getattr(args, option)
        if value is not None:
            conf[field] = value
    for field, entries in (("tasks", args.tasks), ("report_tasks", args.report_tasks)):
        names = [name.strip() for entry in entries for name in entry.split(",") if name.strip()]
        if names:
            conf[field] = names
    for option in ("nvlink_required", "apply_chat_template"):
        if getattr(args, option):
            conf[option] = True
    return {**conf, **read_settings(args.set)}


def _check_kind(args: argparse.Namespace) -> None:
    """Raises UsageError if the given options do not suit the kind of run."""
    if args.kind != "evaluate":
        if not args.recipe:
            raise UsageError(f"RECIPE.yaml is missing: --kind {args.kind} needs a merge configuration")
    elif args.recipe:
        raise UsageError("RECIPE.yaml: --kind evaluate takes --model PATH instead of a recipe")
    elif not args.model and not any(_names(entry, "model") for entry in args.set):
        raise UsageError("--model is missing: --kind evaluate needs the model's path")
    if args.kind != "merge" and not args.tasks and not any(_names(entry, "tasks") for entry in args.set):
        raise UsageError(f"--tasks is missing: --kind {args.kind} needs at least one JSONL file of tasks")
    _check_gpus(args)


def _check_gpus(args: argparse.Namespace) -> None:
    """Raises UsageError where an engine of one device would be given several GPUs."""
    from emep.wire.engines import check_startable
    from emep.wire.errors import InvalidError

    if args.kind not in ("merge", "evaluate"):
        return
    try:
        check_startable(runtime="agent", engine=args.kind, gpus=args.gpus or 0)
    except InvalidError as error:
        raise UsageError(f"--gpus: {str(error).removeprefix('gpu_count: ')}") from error


def _names(entry: str, field: str) -> bool:
    return entry.partition("=")[0].strip() == field


def read_recipe(source: str) -> str:
    """The recipe's text, or its URI as it is. Raises UsageError with file and line where it is no mapping."""
    from emep.yaml_text import TooDeep, YamlFault, read_yaml

    if "://" in source:
        return source
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text") from error
    except ValueError as error:
        raise UsageError(f"{source!r}: cannot be read: {error}") from error
    try:
        document = read_yaml(text)
    except TooDeep as error:
        raise UsageError(f"{path}: is nested too deeply for a recipe") from error
    except YamlFault as error:
        place = f", line {error.line}" if error.line is not None else ""
        raise UsageError(f"{path}{place}: not YAML: {error.problem}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: a recipe is a mapping with merge_method, not {type(document).__name__}")
    if "merge_method" not in document:
        raise UsageError(f"{path}: merge_method is missing: linear, slerp, task_arithmetic, ties, ...")
    return text


def read_settings(entries: list[str]) -> dict[str, Any]:
    """``key=value`` pairs with YAML values. Raises UsageError naming the pair."""
    from emep.yaml_text import YamlFault, read_yaml

    found: dict[str, Any] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set: {entry!r} is not KEY=VALUE")
        try:
            found[key.strip()] = read_yaml(value) if value.strip() else None
        except YamlFault as error:
            raise UsageError(f"--set {key.strip()}: {value[:80]!r} is not YAML") from error
    return found
