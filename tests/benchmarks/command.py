"""The command line that the benchmarks share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping


def run_measures(measures: Mapping[str, Callable[[], None]], names: list[str]) -> int:
    """Run all measures, or those that are named; 2 where a name is unknown."""
    unknown = sorted(set(names) - set(measures))
    if unknown:
        print(f"unknown measure {unknown[0]!r}: use {', '.join(measures)}", file=sys.stderr)
        return 2
    for name in names or measures:
        measures[name]()
    return 0
