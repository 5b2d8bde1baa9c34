"""``emep agent``: offer this node's GPUs and run what is granted on them."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emep.agent.settings import AgentSettings

DESCRIPTION = """\
Offer this node's GPUs to EMEP and run what is granted on them.

The agent finds NVIDIA GPUs through NVML and AMD GPUs through AMD SMI. It calls
the API and is never called, so it works behind a firewall. It needs the API
server's enrolment secret in EMEP_AGENT_TOKEN.
"""
EPILOG = """\
An engine is started as a process group of its own. An agent that is killed and
started anew goes on watching what it started; one that is told to end (SIGTERM,
Ctrl-C) lets its work checkpoint first, for --stop-grace.

examples:
  emep agent                               the GPUs that the drivers find
  emep agent --simulate 8 --group-size 4   eight GPUs that are not there, in two NVLink groups
  emep agent --simulate 0 --cpu 16         CPU jobs only
  emep agent --run-as emep-engine          engines as another user (the agent runs as root)
  emep agent --report-only --name NODE     a node of a Kubernetes cluster (docs/operate.md)
"""
KUBERNETES_LABEL = {"emep/runtime": "kubernetes"}
"""Of nodes that pods are granted, and nothing else."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the agent."""
    from emep.cli.common import add_api_argument

    parser.add_argument("--name", help="the node's name (default: the host's)")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="run folders and logs (default: below ~/.local/state)"
    )
    gpus = parser.add_argument_group("GPUs")
    gpus.add_argument(
        "--simulate", type=int, metavar="N", help="offer N GPUs that are not there; 0: CPU jobs only"
    )
    gpus.add_argument(
        "--group-size",
        type=int,
        default=4,
        metavar="N",
        help="simulated GPUs in an NVLink group (4; 0: none linked)",
    )
    gpus.add_argument("--gpu-type", default="simulated", metavar="NAME", help="type of the simulated GPUs")
    gpus.add_argument("--gpu-memory", default="16Gi", metavar="SIZE", help="memory of a simulated GPU (16Gi)")
    node = parser.add_argument_group("the node")
    node.add_argument("--pool", default="default", help="pool that it joins (default)")
    node.add_argument("--rack", default="", help="rack that it stands in")
    node.add_argument("--block", default="", help="block of racks that it stands in")
    node.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="a label; may be repeated"
    )
    node.add_argument(
        "--bandwidth", type=float, default=0.0, metavar="GBPS", help="network bandwidth in Gbit/s"
    )
    node.add_argument("--cpu", type=float, metavar="N", help="CPUs to offer (default: all)")
    node.add_argument("--memory", metavar="SIZE", help="memory to offer, such as 64Gi (default: all)")
    work = parser.add_argument_group("the work")
    work.add_argument(
        "--engine-command",
        metavar="COMMAND",
        help="program that runs engines (default: emep-engine beside emep)",
    )
    work.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="variable that engines get, too; may be repeated",
    )
    work.add_argument(
        "--run-as",
        metavar="USER[:GROUP]",
        help="start engines as this user; the agent itself runs as root (docs/operate.md)",
    )
    work.add_argument(
        "--require-landlock",
        action="store_true",
        help="run nothing where the kernel (Landlock) does not keep a job to its own files",
    )
    work.add_argument(
        "--report-only",
        action="store_true",
        help="report the node and start nothing: its work is pods (--name is the node's in Kubernetes)",
    )
    work.add_argument(
        "--stop-grace",
        default="130s",
        metavar="TIME",
        help="what work gets to checkpoint when the agent ends (130s)",
    )
    parser.add_argument(
        "--report-every",
        default="10s",
        metavar="TIME",
        help="time between two health reports: the policy's health.report_every (10s)",
    )
    parser.add_argument(
        "--connect-timeout",
        default="15s",
        metavar="TIME",
        help="how long to wait at the start for an API that is away",
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add_api_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the agent until it is told to end. Raises AgentStartError with one sentence."""
    # Until it has work to end: by default a container's first process would not even hear of it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    from emep.agent.main import configure_logging, run_agent

    settings = read_settings(args)
    configure_logging(args.log_level)
    return run_agent(settings)


def read_settings(args: argparse.Namespace) -> AgentSettings:
    """The agent's settings from the command line and the environment. Raises AgentStartError."""
    from emep.agent import settings as agent
    from emep.agent.run_as import RunAs
    from emep.client.config import DEFAULT_URL
    from emep.wire.units import parse_duration, parse_memory

    def checked(option: str, parse: object, text: str) -> float:
        try:
            return float(parse(text))  # type: ignore[operator]
        except ValueError as error:
            raise agent.AgentStartError(f"{option}: {error}", usage=True) from error

    name = args.name or agent.default_name()
    if not _NAME.fullmatch(name) or len(name) > 200:
        raise agent.AgentStartError(
            f"--name: {name!r} is no node name: letters, digits, dots, dashes and underscores", usage=True
        )
    for option, value, least in (
        ("--simulate", args.simulate, 0),
        ("--group-size", args.group_size, 0),
        ("--bandwidth", args.bandwidth, 0),
        ("--cpu", args.cpu, 0.01),
    ):
        if value is not None and not value >= least:
            raise agent.AgentStartError(f"{option}: {value:g} is too small: at least {least:g}", usage=True)
    if args.simulate is not None and args.simulate > 1024:
        raise agent.AgentStartError(
            f"--simulate: a node has at most 1024 GPUs, not {args.simulate}", usage=True
        )
    return agent.AgentSettings(
        api_url=agent.api_base(args.api_url or os.environ.get("EMEP_API_URL") or DEFAULT_URL),
        secret=agent.agent_secret(os.environ),
        name=name,
        state_dir=(args.state_dir or agent.default_state_dir(name, os.environ)).absolute(),
        simulate=args.simulate,
        group_size=args.group_size,
        gpu_type=args.gpu_type,
        gpu_memory=int(checked("--gpu-memory", parse_memory, args.gpu_memory)),
        pool=args.pool,
        rack=args.rack,
        block=args.block,
        labels=_labels(args.label) | (KUBERNETES_LABEL if args.report_only else {}),
        bandwidth_gbps=args.bandwidth,
        cpu=args.cpu if args.cpu is not None else agent.node_cpus(report_only=args.report_only),
        memory=(
            int(checked("--memory", parse_memory, args.memory))
            if args.memory
            else agent.node_memory(report_only=args.report_only)
        ),
        run_as=RunAs.parse(args.run_as) if args.run_as else None,
        require_landlock=args.require_landlock,
        engine_command=agent.engine_command(args.engine_command),
        pass_environment=tuple(args.pass_env),
        stop_grace=checked("--stop-grace", parse_duration, args.stop_grace),
        report_every=max(0.1, checked("--report-every", parse_duration, args.report_every)),
        report_only=args.report_only,
        connect_patience=checked("--connect-timeout", parse_duration, args.connect_timeout),
    )


def _labels(texts: list[str]) -> dict[str, str]:
    from emep.agent.settings import AgentStartError

    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise AgentStartError(f"--label: {text!r} is not KEY=VALUE", usage=True)
        labels[key.strip()] = value.strip()
    return labels
