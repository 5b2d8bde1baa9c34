"""A folder for what is made once for all workers of a test run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "EMEP_TEST_SHARED"


def shared_folder() -> Path:
    """The run's folder. The first process of a run makes and removes it; its workers inherit its name."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="emep-tests-shared-")
        atexit.register(shutil.rmtree, os.environ[_VARIABLE], ignore_errors=True)
    return Path(os.environ[_VARIABLE])
