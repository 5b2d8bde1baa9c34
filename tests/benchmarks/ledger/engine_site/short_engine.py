"""An engine that keeps its GPUs for ``input.seconds`` and leaves a note of when its process ran."""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path

from sitecustomize import BEGIN

from engines.contract import Context, Outcome


def run(context: Context) -> Outcome:
    """Wait, and note at the very end of the process from when to when it had which GPUs."""
    given = context.spec.input
    path = Path(given["witness"]) / f"{os.environ['EMEP_ALLOCATION_ID']}.json"

    def note() -> None:
        run = {"gpus": os.environ["EMEP_GPU_INDICES"], "begin": BEGIN, "end": time.time()}
        path.write_text(json.dumps(run), encoding="utf-8")

    atexit.register(note)
    time.sleep(float(given["seconds"]))
    return Outcome()
