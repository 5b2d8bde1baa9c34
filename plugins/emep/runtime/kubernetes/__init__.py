"""Pods: manifests from a rendered pod and a lease, meaning from a pod's status, a client of the cluster.

Documents are plain JSON as the API speaks it; only ``client`` opens a connection.
"""
