"""The scheduling core: pure decisions over an immutable snapshot."""

from emep.scheduling.cluster.index import ClusterIndex
from emep.scheduling.pending import validate_job
from emep.scheduling.plan import plan
from emep.scheduling.planner import IncrementalPlanner

__all__ = ["ClusterIndex", "IncrementalPlanner", "plan", "validate_job"]
