"""Put on PYTHONPATH by the chaos runs: their supervisors then know the engine that keeps witness files.

As ``chaos_steps`` one process holds all GPUs of a job; in the place of ``evolve_candidates`` each process
has one.
"""

from engines.contract import ENGINES, EngineEntry

ENGINES["chaos_steps"] = EngineEntry("tests.builders.chaos_engine:run")
ENGINES["evolve_candidates"] = EngineEntry("tests.builders.chaos_engine:run", parallel=True)
