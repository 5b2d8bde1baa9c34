"""Finds nodes that fail every job, takes them out of service, and tries them again with one job later.

A failure is quick when its job never began (no heartbeat and no Result), or failed within
``node_checks.within`` of its grant. Quick failures in a row of ``node_checks.quick_failures`` different jobs
take a node out, unless the jobs may be to blame. Bad input never counts. A job that fails on another node as
well does not count until it has completed somewhere. Jobs that began must be those of two users with two
recipes, or have completed elsewhere since. What fails on other nodes for the same reason does not count.

A node is watched once it has quick failures, then out, after ``cool_down`` on probation, and then as new.
"""
