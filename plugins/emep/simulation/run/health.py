"""Which nodes and GPUs are up, as the immutable nodes that the scheduler sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emep.scheduling.model import GpuState, Node
from emep.simulation.read.failures import Failure


class ClusterHealth:
    """The cluster under failures; ``nodes`` stays the same object as long as nothing changes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self._number = {node.name: number for number, node in enumerate(self.nodes)}

    def apply(self, failure: Failure) -> None:
        """A node that is down takes nothing; of a GPU that is down the rest of the node goes on."""
        number = self._number[failure.node]
        node = self.nodes[number]
        if failure.gpu is None:
            changed = replace(node, schedulable=not failure.down)
        else:
            state = GpuState.UNHEALTHY if failure.down else GpuState.HEALTHY
            changed = replace(
                node,
                gpus=tuple(
                    replace(gpu, state=state) if gpu.index == failure.gpu else gpu for gpu in node.gpus
                ),
            )
        if changed != node:
            self.nodes = (*self.nodes[:number], changed, *self.nodes[number + 1 :])
