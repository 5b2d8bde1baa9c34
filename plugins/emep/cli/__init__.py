"""The command line ``emep``. A command's module is imported when that command is called, and no other."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS: dict[str, str] = {
    "demo": "run the main job on an embedded default: Airflow, two agents, real models",
    "submit": "start a merge, an evolution, an evaluation or the whole pipeline",
    "queue": "list pending and running jobs",
    "nodes": "list nodes, their GPUs and their health",
    "share": "show fair shares; set and unset weights over the policy file's",
    "history": "list jobs that have ended",
    "explain": "say why a job waits, with every term of its score",
    "logs": "print a job's log",
    "cancel": "cancel a job",
    "requeue": "put a job back into the queue",
    "drain": "give a node or a GPU no new work",
    "resume": "let a node or a GPU take work again",
    "dlq": "list, requeue and discard dead letters",
    "policy": "check a policy file; show what it would change",
    "agent": "offer this node's GPUs and run what is granted on them",
    "simulate": "run a workload through the scheduler in simulated time",
}
"""Command -> one line on it. Its module in ``commands`` has ``add_arguments`` and ``run``."""

_WITHOUT_API = frozenset({"simulate"})
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 1 (failed) or 2 (wrong use); argparse itself exits with 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _top_parser()
    if not arguments or arguments[0] not in COMMANDS:
        return _without_command(parser, arguments)
    name, *rest = arguments
    path = f"{__name__}.commands.{name}"
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return fail(f"this installation has no command {name}", WRONG_USE)
    command = argparse.ArgumentParser(
        prog=f"emep {name}",
        description=getattr(module, "DESCRIPTION", COMMANDS[name]),
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(command)
    args = command.parse_args(rest)
    if name not in _WITHOUT_API:
        from emep.cli.quick import import_httpx

        import_httpx()
    return _run(module.run, args)


def _run(run: object, args: argparse.Namespace) -> int:
    try:
        code = run(args)  # type: ignore[operator]
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `emep queue | head`: the reader has closed the pipe. Python would report that again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if (code := _code_of(error)) is None:
            raise
        return fail(_sentence_of(error), code)


def _sentence_of(error: Exception) -> str:
    """The error's sentence for people, without the route's parameter, which means nothing to them."""
    detail, status = getattr(error, "detail", ""), getattr(error, "status", None)
    if status == 401 and getattr(error, "problem", {}).get("code") == "not_authenticated":
        return f"{error} (set EMEP_USERNAME and EMEP_PASSWORD, or EMEP_TOKEN to one that has not expired)"
    return detail if detail and status == 404 else str(error)


def _code_of(error: Exception) -> int | None:
    """Exit status of an error that is one sentence for people; None for all others."""
    if "emep.client.errors" in sys.modules:
        from emep.client.errors import EmepConfigurationError, EmepError

        if isinstance(error, EmepError):
            return WRONG_USE if isinstance(error, EmepConfigurationError) else FAILED
    if "emep.agent.settings" in sys.modules:
        from emep.agent.settings import AgentStartError

        if isinstance(error, AgentStartError):
            return WRONG_USE if error.usage else FAILED
    from emep.cli.common import UsageError

    return WRONG_USE if isinstance(error, UsageError) else None


def fail(sentence: str, code: int = FAILED) -> int:
    """Print the error on standard error, and return the exit status."""
    print(f"emep: {sentence}", file=sys.stderr)
    return code


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    return argparse.ArgumentParser(
        prog="emep",
        usage="emep COMMAND [options]",
        description="EMEP: GPU orchestration for Airflow.",
        epilog=f"commands:\n{listing}\n\n`emep COMMAND --help` describes a command. The API is found by "
        "EMEP_API_URL (http://localhost:8080)\nand entered with EMEP_USERNAME and EMEP_PASSWORD, EMEP_TOKEN, "
        "or ~/.config/emep/credentials.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _without_command(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    if not arguments:
        parser.print_help(sys.stderr)
        return WRONG_USE
    if arguments[0].startswith("-"):
        if parser.parse_args(arguments).version:
            from importlib.metadata import version

            print(f"emep {version('emep')}")
        return 0
    from difflib import get_close_matches

    near = get_close_matches(arguments[0], COMMANDS, n=1)
    hint = f"did you mean `emep {near[0]}`?" if near else f"commands are {', '.join(COMMANDS)}"
    return fail(f"there is no command {arguments[0]!r}: {hint}", WRONG_USE)
