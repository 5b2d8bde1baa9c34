"""Moves a node between watched, out of service and on probation, by how jobs end on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import select

from emep.ledger.failing_nodes.blame import recipe_of, task_key, to_blame
from emep.ledger.states import CheckState
from emep.ledger.store.tables import Allocation, Job, Node
from emep.ledger.store.transaction import Transaction
from emep.policy.model import NodeChecksPolicy
from emep.wire.units import count_of, format_duration

REMEMBERED = 50
"""Quick failures that are kept of one node."""
RECENT_SECONDS = 3600.0
"""How long a failure on another node says that the fault is not this one's."""
AVOIDED = 8
"""Nodes that a job avoids at most: those that it failed on last."""
MAX_REASON = 200


def note_failure(
    tx: Transaction,
    checks: NodeChecksPolicy,
    job: Job,
    allocation: Allocation,
    reason: str,
    *,
    began: bool,
) -> None:
    """Record that work failed by itself: its job avoids these nodes, and a quick failure counts."""
    avoided = [name for name in job.avoid_nodes or () if name not in allocation.nodes]
    job.avoid_nodes = [*avoided, *allocation.nodes][-AVOIDED:]
    tx.session.flush()
    is_quick = not began or tx.now - allocation.granted_at <= checks.within
    # Of a job on several nodes it is not known on which one it failed.
    if checks.quick_failures and is_quick and len(allocation.nodes) == 1:
        _count_failure(tx, checks, job, allocation, reason, began)


def note_success(tx: Transaction, checks: NodeChecksPolicy, job: Job, allocation: Allocation) -> None:
    """Record that work completed: its nodes are fine, and the nodes where it failed before are to blame."""
    doubted = select(Node.name).where(
        Node.name.in_(allocation.nodes),
        Node.check_state.in_([CheckState.WATCHED.value, CheckState.PROBATION.value]),
    )
    for name in sorted(tx.session.scalars(doubted)):
        node = _lock(tx, name)
        is_trial = node is not None and node.check_state == CheckState.PROBATION.value
        if node is None or (is_trial and allocation.granted_at < node.check_until):
            continue
        clear_checks(node)
        tx.session.flush()
        if is_trial:
            tx.changes_holds()
            tx.emit("node_proved", node=name, reason=f"back in service: job {job.id} has completed on it")
    if _is_repeated(job):
        _mark_failures(tx, task_key(job), "completed", but=())
        for name in _suspects(tx):
            node = _lock(tx, name)
            if node is not None and node.check_state == CheckState.WATCHED.value:
                _take_out_if_due(tx, checks, node)


def end_cool_down(tx: Transaction, name: str) -> None:
    """Put a node on probation whose cool-down is over."""
    node = _lock(tx, name)
    if node is None or node.check_state != CheckState.OUT.value or node.check_until > tx.now:
        return
    # From now on: what was granted before says nothing any more.
    node.check_state, node.check_until = CheckState.PROBATION.value, tx.now
    tx.session.flush()
    tx.changes_holds()
    reason = f"gets one job at a time until one has completed; it was out of service: {node.check_reason}"
    tx.emit("node_on_probation", node=name, reason=reason)


# ---- counting ------------------------------------------------------------------------------------------


def _count_failure(
    tx: Transaction,
    checks: NodeChecksPolicy,
    job: Job,
    allocation: Allocation,
    reason: str,
    began: bool,
) -> None:
    name, key = allocation.nodes[0], task_key(job)
    elsewhere = _is_repeated(job) and _mark_failures(tx, key, "elsewhere", but=(name,))
    node = _lock(tx, name)
    if node is None:
        return
    others = [entry for entry in node.failures if entry["job"] != key]
    entry = {
        "job": key,
        "user": job.user,
        "recipe": recipe_of(job),
        "began": began,
        "reason": reason[:MAX_REASON],
        "at": tx.now,
        "elsewhere": elsewhere,
        "completed": False,
    }
    node.failures = [*others, entry][-REMEMBERED:]
    if not node.check_state:
        node.check_state = CheckState.WATCHED.value
    tx.session.flush()
    if node.check_state == CheckState.WATCHED.value:
        _take_out_if_due(tx, checks, node)
    elif (
        node.check_state == CheckState.PROBATION.value
        and allocation.granted_at >= node.check_until
        and not elsewhere
    ):
        _take_node_out(tx, checks, node, f"a job failed on it while it was on probation: {entry['reason']}")


def _take_out_if_due(tx: Transaction, checks: NodeChecksPolicy, node: Node) -> None:
    since = tx.now - RECENT_SECONDS
    same = {
        entry["reason"]
        for name in _suspects(tx)
        if name != node.name
        for entry in _entries(tx, name)
        if entry["at"] >= since
    }
    blamed = to_blame(node.failures, checks.quick_failures, same)
    if blamed:
        words = f"{count_of(len(blamed), 'different job')} in a row failed quickly on it"
        _take_node_out(tx, checks, node, f"{words}, the last: {blamed[-1]['reason']}")


def _take_node_out(tx: Transaction, checks: NodeChecksPolicy, node: Node, reason: str) -> None:
    wait = checks.cool_down
    node.check_state, node.check_until, node.check_reason = CheckState.OUT.value, tx.now + wait, reason
    tx.session.flush()
    tx.changes_holds()
    sentence = f"node {node.name} is out of service: {reason}; it is tried again in {format_duration(wait)}"
    tx.emit("node_taken_out", node=node.name, code="quick_failures", reason=sentence)


def _mark_failures(tx: Transaction, key: str, what: str, but: Collection[str]) -> bool:
    """Mark a job's failures on other nodes with what is known since; False if there are none."""
    found = False
    for name in _suspects(tx):
        if name in but or all(entry["job"] != key for entry in _entries(tx, name)):
            continue
        node = _lock(tx, name)
        if node is not None:
            found = True
            node.failures = [
                {**entry, what: True} if entry["job"] == key else entry for entry in node.failures
            ]
    tx.session.flush()
    return found


def clear_checks(node: Node) -> None:
    """Forget what was held against a node."""
    node.check_state, node.check_reason, node.check_until, node.failures = "", "", 0.0, []


def _is_repeated(job: Job) -> bool:
    """Whether it, or an earlier try of its task, may have failed before."""
    return bool(job.requeues or job.try_number > 1)


def _suspects(tx: Transaction) -> Sequence[str]:
    """Names of the nodes that have quick failures."""
    return tx.session.scalars(select(Node.name).where(Node.check_state != "").order_by(Node.name)).all()


def _entries(tx: Transaction, name: str) -> list[dict[str, Any]]:
    return list(tx.session.scalar(select(Node.failures).where(Node.name == name)) or ())


def _lock(tx: Transaction, name: str) -> Node | None:
    return tx.session.get(Node, name, with_for_update=True, populate_existing=True)
