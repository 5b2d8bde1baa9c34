"""Pods: manifests, what a pod's status means, one watch for all triggers, logs, cleanup."""
