"""Read by every Python that is started with this folder in ``PYTHONPATH``, before anything else of its own.

In an engine's process it notes the time, and puts an engine that only waits in the place of ``merge``.
"""

from __future__ import annotations

import os
import time

BEGIN = time.time()

if "EMEP_CHILD_PIPE" in os.environ:
    from engines.contract import ENGINES, EngineEntry

    ENGINES["merge"] = EngineEntry("short_engine:run")
