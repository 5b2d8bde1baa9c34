"""The scheduling core: pure decisions over an immutable snapshot."""

from emep.scheduling._index import ClusterIndex
from emep.scheduling.plan import plan
from emep.scheduling.planner import Planner
from emep.scheduling.reject import validate_job

__all__ = ["ClusterIndex", "Planner", "plan", "validate_job"]
