"""``emep demo``: the main job on this machine."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

DESCRIPTION = """\
Run the main job on this machine: Airflow, EMEP and two agents, and a pipeline that merges, evolves and
evaluates small real models, down to a scoreboard.

Everything lies in one folder. A second run uses what the first has made.
"""
EPILOG = """\
Only the loopback interface is listened on. Ctrl-C ends every process that was started, and so does any other
end.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the demo."""
    parser.add_argument(
        "--exit", action="store_true", help="end when the pipeline has; 0 if it did what it should"
    )
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="folder of the demo (.emep/demo in the project)"
    )
    parser.add_argument("--port", type=int, default=8080, help="port of Airflow's pages (8080)")
    parser.add_argument("--small", action="store_true", help="smaller models and a shorter search, for tests")


def run(args: argparse.Namespace) -> int:
    """Run the demo: 0, 1 failed, 2 wrong use, 130 or 143 when told to end."""
    from emep.demo.home import project_root
    from emep.demo.processes import DemoError
    from emep.demo.run import Demo, Options
    from emep.demo.screen import Screen

    def told_to_end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    # A shell starts what it puts in the background with SIGINT ignored; Ctrl-C must end it all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, told_to_end)
    signal.signal(signal.SIGHUP, told_to_end)
    try:
        if not 1 <= args.port <= 65535:
            raise DemoError(f"--port: {args.port} is no port, choose one of 1024 to 65535", 2)
        home = args.home or project_root() / ".emep" / "demo"
        return Demo(Options(home, args.port, args.exit, args.small), Screen()).run()
    except DemoError as error:
        print(f"emep demo: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("\nEnded; every process of the demo is gone.", file=sys.stderr)
        return 0
