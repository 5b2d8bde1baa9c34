"""Put on PYTHONPATH by the supervisor's tests: every process of theirs then knows the stepping engine.

The engine takes the places of ``compare`` (one process) and ``evolve_candidates`` (one process per GPU), so
that the tests can say what an engine does and when, with real processes and nothing of the product changed.
"""

from engines.contract import ENGINES, EngineEntry

ENGINES["compare"] = EngineEntry("tests.builders.stepping_engine:run")
ENGINES["evolve_candidates"] = EngineEntry("tests.builders.stepping_engine:run", parallel=True)
