"""``emep nodes``: nodes, their GPUs, NVLink groups and health."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from emep.cli.common import (
    add_read_arguments,
    all_pages,
    compact_indices,
    connect,
    print_json,
    since,
)
from emep.cli.table import print_table
from emep.wire.units import count_of, format_memory

DESCRIPTION = "List nodes, their GPUs, NVLink groups and health."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is shown."""
    parser.add_argument("node", nargs="?", metavar="NODE", help="only this node, one line for each GPU")
    parser.add_argument("--gpus", action="store_true", help="one line for each GPU of every node")
    add_read_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the nodes. Raises UsageError for a node that is not there."""
    from emep.cli import fail
    from emep.client import calls

    with connect(args) as client:
        nodes, total = all_pages(client, calls.nodes())
        leaving = [] if args.json else client.leaving("external").items
    if args.node:
        nodes = [node for node in nodes if node["name"] == args.node]
        if not nodes:
            return fail(f"there is no node {args.node!r}: `emep nodes` lists them")
    if args.json:
        print_json({"items": nodes, "total": len(nodes) if args.node else total})
    elif not nodes:
        print("no node: start `emep agent` on one")
    elif args.gpus or args.node:
        columns = ["GPU", "STATE", "JOB", "TYPE", ">MEMORY", ">USED", ">BUSY", ">TEMP", "GROUP", "WHY"]
        rows = [gpu_row(node, gpu) for node in nodes for gpu in node["gpus"]]
        print_table(columns, rows, optional=(">TEMP", ">USED", ">MEMORY", "GROUP", "TYPE"))
    else:
        columns = [
            "NODE", "STATE", "POOL", "RACK", ">CPUS", ">MEMORY", "GPUS", ">FREE", ">HELD", ">OUT", ">REPORT",
            "FREE IN EACH GROUP",
        ]  # fmt: skip
        rows = [node_row(node) for node in nodes]
        print_table(columns, rows, optional=(">REPORT", ">MEMORY", ">CPUS", "RACK", "POOL"))
    if not args.json:
        for node in nodes:
            print_doubt(node)
        for allocation in leaving:
            print_leaving(allocation, {node["name"] for node in nodes})
    return 0


def node_row(node: dict[str, Any]) -> list[object]:
    """A node with how many of its GPUs are free, held, and out of service."""
    gpus = node["gpus"]
    held = [gpu for gpu in gpus if gpu["job_id"]]
    free = [gpu for gpu in gpus if is_free(node, gpu)]
    types: dict[str, int] = {}
    for gpu in gpus:
        types[gpu["gpu_type"] or "GPU"] = types.get(gpu["gpu_type"] or "GPU", 0) + 1
    return [
        node["name"],
        node["state"],
        node["pool"],
        node["rack"],
        node["cpu"],
        format_memory(node["memory"]),
        ", ".join(f"{count} {name}" for name, count in types.items()) or "none",
        len(free),
        len(held),
        len(gpus) - len(free) - len(held),
        since(node["last_report_at"]),
        groups(node),
    ]


def print_doubt(node: dict[str, Any]) -> None:
    """Why a node is out of service or on probation, and what ends that."""
    name, why = node["name"], node.get("check_reason")
    if node["state"] == "out":
        print(f"{name} is out of service: {why}. `emep resume {name}` ends that at once")
    elif node["state"] == "probation":
        print(f"{name} is on probation, with one job at a time until one has completed: {why}")


def print_leaving(allocation: Mapping[str, Any], nodes: Collection[str]) -> None:
    """Print what holds GPUs although its job is over: external work that was not reported gone."""
    held = [gpu["node"] for gpu in allocation["gpus"] if gpu["node"] in nodes]
    if held:
        where, name = ", ".join(dict.fromkeys(held)), allocation["id"]
        print(
            f"{count_of(len(held), 'GPU')} of {where} held by allocation {name} of job "
            f"{allocation['job_id']} (runtime external), which is {allocation['state']}: its client has not "
            f"confirmed yet that its work is gone (POST /allocations/{name}/gone)"
        )


def is_free(node: dict[str, Any], gpu: dict[str, Any]) -> bool:
    """Whether a job could be granted this GPU now."""
    return bool(node["alive"]) and node["state"] != "out" and gpu["state"] == "healthy" and not gpu["job_id"]


def groups(node: dict[str, Any]) -> str:
    """``nvlink-0: 0-1 of 4`` for each NVLink group: which GPUs of it are free, of how many."""
    found: dict[str, list[dict[str, Any]]] = {}
    for gpu in node["gpus"]:
        if gpu["nvlink_group_id"]:
            found.setdefault(gpu["nvlink_group_id"], []).append(gpu)
    parts = []
    for name, members in found.items():
        free = [gpu["index"] for gpu in members if is_free(node, gpu)]
        short = name.removeprefix(f"{node['name']}/")
        parts.append(f"{short}: {compact_indices(free) or 'none'} of {len(members)}")
    return "; ".join(parts)


def gpu_row(node: dict[str, Any], gpu: dict[str, Any]) -> list[object]:
    """A GPU with what it is, what it does and who holds it."""
    busy, heat, used = gpu["utilization"], gpu["temperature_c"], gpu["memory_used"]
    return [
        f"{node['name']}:{gpu['index']}",
        gpu["state"] if node["alive"] else "node down",
        gpu["job_id"],
        gpu["gpu_type"],
        format_memory(gpu["gpu_memory"]),
        None if used is None else format_memory(used),
        None if busy is None else f"{busy:.0f}%",
        None if heat is None else f"{heat:.0f}°C",
        gpu["nvlink_group_id"],
        gpu["state_reason"],
    ]
