"""The scheduling core: pure decisions over an immutable snapshot.

``plan.plan`` decides on a snapshot, ``planner.IncrementalPlanner`` the same for callers that tell it what
changes, ``intake.validate_job`` whether a job can ever run.
"""
