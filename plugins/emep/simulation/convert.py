"""``python -m emep.simulation.convert``: published traces in the form that ``emep simulate`` reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from emep.simulation.read.errors import InputError
from emep.simulation.read.muri import convert_muri, muri_cluster
from emep.simulation.read.openb import convert_openb
from emep.simulation.report.outputs import write_files


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``cluster.yaml`` (and ``jobs.csv``) into a new or existing folder; 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m emep.simulation.convert", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    muri = kinds.add_parser("muri", help="a Muri trace (Philly): jobs.csv, and a cluster of equal nodes")
    muri.add_argument("--nodes", type=int, default=8, help="nodes of the cluster (default 8)")
    muri.add_argument("--gpus", type=int, default=8, help="GPUs of each node (default 8)")
    openb = kinds.add_parser("openb", help="an openb node list (Alibaba): cluster.yaml")
    openb.add_argument("--group", type=int, default=4, help="GPUs of an NVLink group (default 4)")
    for parser_of_kind in (muri, openb):
        parser_of_kind.add_argument("file", help="the published file")
        parser_of_kind.add_argument("out", help="folder to write to")
    args = parser.parse_args(arguments)
    try:
        if args.kind == "muri":
            files = {"jobs.csv": convert_muri(args.file), "cluster.yaml": muri_cluster(args.nodes, args.gpus)}
        else:
            files = {"cluster.yaml": convert_openb(args.file, args.group)}
    except InputError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    write_files(Path(args.out), files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
