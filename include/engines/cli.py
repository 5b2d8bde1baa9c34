"""``emep-engine``: the engines by themselves, without Airflow. Starting it imports no torch."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.contract import EngineError, ExitCode
from engines.schemas import NAMES, load_schema

WRONG_USE = 2
_DELEGATED = {
    "evaluate": ("engines.evaluation.cli", "score a model on tasks"),
    "evolve": ("engines.evolution.cli", "search a recipe's parameters on tasks"),
}
"""Commands that live beside their engines: ``add_arguments(parser)`` and ``run(arguments) -> exit code``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong use or bad input (not ``run``)."""
    # torch prints this warning about NVIDIA's package at every import; no caller can act on it.
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = _plain_run(given) or _parser(given).parse_args(given)
    try:
        return int(parsed.run(parsed))
    except EngineError as error:
        sys.stderr.write(f"emep-engine: {error.message}\n")
        return WRONG_USE if error.exit_code == ExitCode.BAD_INPUT else int(error.exit_code)
    except BrokenPipeError:
        # The reader of our output is gone: nothing more can be written, not even by Python's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.FAILED)


def _plain_run(given: Sequence[str]) -> argparse.Namespace | None:
    """``run SPEC.json`` and no more, as agents call it: a GPU waits while the other commands are built."""
    if len(given) == 2 and given[0] == "run" and not given[1].startswith("-"):
        return argparse.Namespace(spec=Path(given[1]), run=_run)
    return None


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    from importlib.metadata import version

    parser = argparse.ArgumentParser(
        prog="emep-engine", description="Merge, evaluate and evolve models; no Airflow needed."
    )
    parser.add_argument("--version", action="version", version=f"emep-engine {version('emep')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_merge(commands)
    for name, (module, text) in _DELEGATED.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        # Only the command that is called loads its module, so that the others start at once.
        if name in given:
            import_module(module).add_arguments(command)
        command.set_defaults(run=lambda parsed, module=module: import_module(module).run(parsed))
    _add_run(commands)
    _add_schema(commands)
    return parser


def _add_merge(commands: Any) -> None:
    text = "Merge models as a recipe (YAML) says, into a folder that transformers loads."
    merge = commands.add_parser("merge", help="merge models by a recipe", description=text)
    merge.add_argument(
        "config", metavar="CONFIG.yaml", help="the recipe; model paths start at the working directory"
    )
    merge.add_argument("out", metavar="OUT_DIR", type=Path, help="folder to write; must not exist")
    merge.add_argument("--seed", type=_seed, default=0, help="seed of dare's random masks (default: 0)")
    merge.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N (default: cpu)")
    merge.add_argument("--chunked", action="store_true", help="work in small pieces, for little memory")
    merge.add_argument(
        "--dry-run", action="store_true", help="check everything and print the plan; write nothing"
    )
    merge.add_argument(
        "--force",
        action="store_true",
        help="replace OUT_DIR where a merge wrote it; never an input, a link, or files of yours",
    )
    merge.add_argument(
        "--strict", action="store_true", help="refuse inputs with tensors that the donor lacks"
    )
    merge.add_argument(
        "--allow-nonfinite", action="store_true", help="merge inputs that hold NaN or infinity"
    )
    merge.add_argument(
        "--allow-mismatch",
        action="append",
        default=[],
        metavar="FIELD",
        help="merge models whose configs differ in FIELD (such as rope_theta); the donor's value is kept",
    )
    merge.add_argument(
        "--shard-size",
        type=_size,
        default=5_000_000_000,
        metavar="BYTES",
        help="limit of a file (default: 5GB)",
    )
    merge.set_defaults(run=_merge)


def _add_run(commands: Any) -> None:
    text = (
        "Carry out a SPEC under a supervisor that renews the lease and relays directives. Exit code: 0 done, "
        "65 bad input, 75 preempted with a checkpoint, 86 GPU out of memory, others failed."
    )
    run = commands.add_parser("run", help="carry out a SPEC, as on a GPU node", description=text)
    run.add_argument("spec", metavar="SPEC.json", type=Path, help="see: emep-engine schema spec")
    run.set_defaults(run=_run)


def _add_schema(commands: Any) -> None:
    text = "Print the JSON Schema of a document."
    schema = commands.add_parser("schema", help="print a document's JSON Schema", description=text)
    schema.add_argument("document", choices=NAMES)
    schema.set_defaults(run=_schema)


def _merge(parsed: argparse.Namespace) -> int:
    from engines.merge.run.command import merge_command

    return merge_command(
        config=parsed.config,
        out=parsed.out,
        seed=parsed.seed,
        device=parsed.device,
        chunked=parsed.chunked,
        dry_run=parsed.dry_run,
        options={
            "force": parsed.force,
            "allow_mismatch": parsed.allow_mismatch,
            "strict": parsed.strict,
            "allow_nonfinite": parsed.allow_nonfinite,
            "shard_bytes": parsed.shard_size,
        },
    )


def _run(parsed: argparse.Namespace) -> int:
    # Signals wait until the supervisor can judge them: by default they would end this process or, where it is
    # the first of a container, be forgotten. At its end they are held back again.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    from engines.supervisor.run import supervise

    return supervise(parsed.spec)


def _schema(parsed: argparse.Namespace) -> int:
    print(json.dumps(load_schema(parsed.document), indent=2))
    return 0


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number from 0 to 2^64-1")
    return value


def _size(text: str) -> int:
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    digits = text.rstrip("bBiIkKmMgG ")
    try:
        value = int(float(digits) * units[text[len(digits) :].strip().upper()])
    except (ValueError, KeyError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be a size such as 5GB or 500MB")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
