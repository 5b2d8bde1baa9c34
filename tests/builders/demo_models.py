"""The demo's small models, made once for all tests of a run."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from engines.demo.models import DemoFiles, prepare


@cache
def small_demo() -> DemoFiles:
    """Models, tasks and recipes of ``prepare(small=True)`` in a folder that goes away with the process."""
    folder = Path(tempfile.mkdtemp(prefix="emep-demo-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return prepare(folder, small=True)
