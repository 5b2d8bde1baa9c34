"""A Kubernetes on this machine for a developer: `python -m tests.cluster up`, `down`, `status`, `kubectl`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster.local import LocalCluster, prepare
from tests.cluster.settings import CannotBeHad, ClusterError, Settings

CANNOT_BE_HAD = 3


def _parser() -> argparse.ArgumentParser:
    own = Settings()
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--name", default=own.name, help="which cluster; they run side by side (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="packages, binary (minutes at first) and images; starts nothing")
    up = commands.add_parser("up", help="start a cluster and leave it running")
    up.add_argument("--nodes", type=int, default=own.nodes, help="real nodes (%(default)s)")
    up.add_argument("--gpus", type=int, default=own.gpus, help="GPUs that a node shows (%(default)s)")
    up.add_argument(
        "--node-grace",
        type=int,
        default=own.node_grace_s,
        metavar="S",
        help="until a silent node counts as dead",
    )
    up.add_argument(
        "--toleration", type=int, default=own.toleration_s, metavar="S", help="until its pods are evicted"
    )
    down = commands.add_parser("down", help="stop a cluster and remove everything of it")
    down.add_argument("--all", action="store_true", help="every cluster on this machine")
    commands.add_parser("status", help="clusters, their processes and kubeconfigs")
    kubectl = commands.add_parser("kubectl", help="kubectl with every right", add_help=False)
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _up(options: argparse.Namespace) -> None:
    started = time.monotonic()
    settings = Settings(
        name=options.name,
        nodes=options.nodes,
        gpus=options.gpus,
        node_grace_s=options.node_grace,
        toleration_s=options.toleration,
    )
    prepare()
    prepared = time.monotonic()
    cluster = LocalCluster.new(settings, owned=False)
    cluster.up()
    now = time.monotonic()
    print(f"up in {now - prepared:.1f} s, after {prepared - started:.1f} s of preparation")
    print(f"export KUBECONFIG={cluster.kubeconfig}  # every right")
    print(f"export KUBECONFIG={cluster.emep_kubeconfig}  # what EMEP's account may do")


def _status() -> None:
    for cluster in LocalCluster.existing():
        running = ", ".join(f"{process.name} {process.pid}" for process in cluster.register.running())
        print(f"{cluster.settings.name}: {cluster.control_plane.server}\n  {running or 'nothing runs'}")
        print(f"  {cluster.kubeconfig}\n  {cluster.emep_kubeconfig}")


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a cluster failed, 2 usage, 3 this machine cannot have one."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "kubectl":
            return LocalCluster.find(options.name).kubectl(*options.arguments)
        if options.command == "prepare":
            program, _ = prepare()
            print(f"ready: {program}")
        elif options.command == "up":
            _up(options)
        elif options.command == "down":
            for cluster in LocalCluster.existing() if options.all else [LocalCluster.find(options.name)]:
                cluster.down()
        else:
            _status()
    except CannotBeHad as reason:
        print(reason, file=sys.stderr)
        return CANNOT_BE_HAD
    except (ClusterError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
