"""Put on PYTHONPATH by the chaos runs: their supervisors then know the engine that keeps witness files.

It takes the places of ``compare`` (one process holds all GPUs) and ``evolve_candidates`` (one for each).
"""

from engines.contract import ENGINES, EngineEntry

ENGINES["compare"] = EngineEntry("tests.builders.chaos_engine:run")
ENGINES["evolve_candidates"] = EngineEntry("tests.builders.chaos_engine:run", parallel=True)
