"""Pods: manifests, what a pod's status means, one watch for all triggers, logs, cleanup.

Documents are plain JSON as the API speaks it; only ``client`` opens a connection.
"""
