"""The simulator: trace readers, a virtual clock around ``emep.scheduling.plan``, and the report."""
