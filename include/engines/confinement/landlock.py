"""Landlock: a process gives up rights on files, for itself and its children, for good (Linux 5.13).

The kernel checks the file that is opened, not its name, so a link that is made between a check and an opening
changes nothing. From Linux 6.12 on, the process also gives up signals to other jobs. It keeps the network and
the devices' own commands.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM, _REFER, _TRUNCATE = (1 << bit for bit in range(9, 15))
_SINCE_FIRST = (1 << 13) - 1
_SCOPED = 1 << 0 | 1 << 1
"""No abstract sockets of, and no signals to, processes outside."""
READ = READ_FILE | READ_DIR
SYSTEM = READ | EXECUTE
WRITE = (
    READ | WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK |
    _MAKE_FIFO | _MAKE_SYM | _REFER | _TRUNCATE
)  # fmt: skip
DEVICE = READ | WRITE_FILE
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def version() -> int:
    """The kernel's version of Landlock; 0 where it has none, or where a container forbids it."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    except (OSError, AttributeError):
        return 0


def restrict(allowed: Iterable[tuple[Path, int]]) -> None:
    """Give up every right on files, except for the given paths and all below them.

    This holds for the calling thread and all that it starts, so call it before other threads are started.
    Paths that do not exist are left out. Raises OSError if the kernel refuses.
    """
    handled = _SINCE_FIRST
    known = version()
    handled |= _REFER if known >= 2 else 0
    handled |= _TRUNCATE if known >= 3 else 0
    rules = _Ruleset(handled, 0, _SCOPED if known >= 6 else 0)
    # An older kernel knows the first field alone.
    size = ctypes.sizeof(rules) if known >= 6 else 8
    ruleset = _call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path, rights in allowed:
            _allow(ruleset, path, rights & handled)
        if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        beneath = _Beneath(rights, descriptor)
        _call(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.byref(beneath),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(descriptor)
