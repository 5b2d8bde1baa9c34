"""Put on an agent's PYTHONPATH by the tests of the loop: its engines then know one that obeys a test."""

from engines.contract import ENGINES, EngineEntry

ENGINES["loop_steps"] = EngineEntry("loop_engine:run")
