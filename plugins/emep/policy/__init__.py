"""The policy file: classes, queues, weights, preemption, limits and quotas, as data validated on load."""

from emep.policy.describe import describe
from emep.policy.errors import PolicyError
from emep.policy.load import default_policy, load_policy, load_preset, parse_policy_text, preset_names
from emep.policy.model import (
    CLASS_ALIASES,
    ClassRestriction,
    HealthPolicy,
    LeasePolicy,
    Policy,
    PreemptionPolicy,
    ProjectPolicy,
    QueuePolicy,
    RetryPolicy,
    SimulationPolicy,
    UserPolicy,
)
from emep.policy.parse import parse_policy

__all__ = [
    "CLASS_ALIASES",
    "ClassRestriction",
    "HealthPolicy",
    "LeasePolicy",
    "Policy",
    "PolicyError",
    "PreemptionPolicy",
    "ProjectPolicy",
    "QueuePolicy",
    "RetryPolicy",
    "SimulationPolicy",
    "UserPolicy",
    "default_policy",
    "describe",
    "load_policy",
    "load_preset",
    "parse_policy",
    "parse_policy_text",
    "preset_names",
]
