"""Imports httpx without what a command never uses: a second event loop library, and httpx's own command line.

Both are optional to httpx, and where they happen to be installed they take most of the time in which a read
command should have answered.
"""

from __future__ import annotations

import sys
from importlib import import_module

_UNUSED = ("trio", "click")


def import_httpx() -> None:
    """Import httpx as if trio and click were not installed; both can be imported as usual afterwards."""
    if "httpcore" in sys.modules:
        return
    hidden = [name for name in _UNUSED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # the documented way to make an import fail
    try:
        import_module("httpx")
        # httpx imports its transport when the first client is made.
        import_module("httpcore")
    finally:
        for name in hidden:
            del sys.modules[name]
