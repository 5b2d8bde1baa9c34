"""Drops the rights of root beyond files: other processes' memory and environment, devices, the network."""

from __future__ import annotations

import ctypes

_VERSION_3 = 0x20080522
_KEPT = (0, 1, 2, 3, 4, 5, 14, 23, 24)
"""Capabilities of an engine that runs as root: owners and modes of files, its own children, locked
memory, limits. What files it opens Landlock decides."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def give_up_privileges() -> None:
    """Keep only the capabilities that work on files needs; do nothing if the process has none.

    A root that keeps all may read any process's environment, Landlock or not. Programs that are started
    afterwards get none back.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    if libc.capget(ctypes.byref(header), data) != 0:
        return
    kept = sum(1 << number for number in _KEPT)
    for index, half in enumerate(data):
        mask = kept >> (32 * index) & 0xFFFFFFFF
        half.effective &= mask
        half.permitted &= mask
        half.inheritable &= mask
    libc.capset(ctypes.byref(header), data)
