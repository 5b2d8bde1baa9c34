"""One cycle of decisions: ``plan(snapshot, policy, now)``, pure, the same input always the same output.

Jobs that can never run are rejected; preemptors get what is held for them; then every other pending job is
looked at once, in order. It starts where it fits (past a reservation only if it uses no reserved GPU or ends
in time), else preempts where it may, else reserves while its pool has reservations left, else waits.
"""

from __future__ import annotations

from emep.policy.model import Policy
from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.cluster.occupancy import Occupancy
from emep.scheduling.collection import no_collection
from emep.scheduling.cycle import Cycle
from emep.scheduling.intake import book_of
from emep.scheduling.model import Plan, Snapshot
from emep.scheduling.order import Lines
from emep.scheduling.quota import Holdings


def plan(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    index: ClusterIndex | None = None,
    *,
    explain: bool = True,
) -> Plan:
    """Decide everything there is to decide at ``now`` (seconds, of the caller's epoch).

    ``index`` is ``ClusterIndex(snapshot.nodes)``, for callers that plan often over the same nodes.
    ``explain=False`` leaves out ``Plan.waiting``, for callers that do not show it. The caller
    hands ``Plan.holds`` back as ``Snapshot.holds`` next time: a preemptor then finds what was freed for it.

    Raises ValueError where two nodes, or two GPUs of a node, have one name.
    """
    with no_collection():
        return _plan(snapshot, policy, now, index, explain=explain)


def _plan(
    snapshot: Snapshot, policy: Policy, now: float, index: ClusterIndex | None, *, explain: bool
) -> Plan:
    if index is None or not index.matches(snapshot.nodes):
        index = ClusterIndex(snapshot.nodes)
    occupancy, holdings = Occupancy(index, policy), Holdings(policy)
    occupancy.add_all(snapshot.allocations)
    for allocation in snapshot.allocations:
        holdings.add_allocation(allocation, index)
    book = book_of(index, policy)
    pending = book.entries(snapshot.pending)
    lines = Lines.of((entry for entry in pending if entry.verdict is None), policy, now)
    cycle = Cycle(occupancy, holdings, book, now, pending, snapshot.usage, snapshot.holds, explain=explain)
    cycle.run(lines)
    return cycle.result()
