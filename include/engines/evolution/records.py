"""The records of one evolution under ``run_uri``; everything else is computed from them.

``run.json`` (what is searched), ``gen/G/ask.json`` (candidates), ``results/EVAL_HASH.json`` (scores),
``gen/G/tell.json`` (what the optimizer was told), each written once: a second writer reads the first one's.
``optimizer.json`` and ``best.*`` follow from all tells and are replaced when these have something new.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engines.artifacts import ArtifactStore, canonical_json, open_store
from engines.artifacts.claims import refuse_inputs
from engines.contract import BadInputError, Output

SCHEMA_VERSION = 1
_OURS = ("best.yaml", "best.json", "optimizer.json", "gen", "results", "report")


class Records:
    """Reads and writes the records of one run."""

    def __init__(self, run_uri: str) -> None:
        self.store: ArtifactStore = open_store(run_uri)

    def run(self) -> dict[str, Any] | None:
        """What is searched; None before the first ask."""
        return self._read("run.json")

    def refuse_strangers(self) -> None:
        """Raises BadInputError if a file that this run would write exists and no evolution wrote it."""
        taken = self.strangers()
        if taken:
            raise BadInputError(
                f"{self.store.uri} holds {', '.join(taken)}, but no evolution began there; "
                "choose another folder, or move what is there",
                file=self.store.uri_of(taken[0]),
                field="input.run_uri",
            )

    def refuse_inputs(self, inputs: Iterable[Path]) -> None:
        """Raises BadInputError where the recipe, a task or a model is what this run would replace."""
        refuse_inputs(self.store, ("run.json", *_OURS), inputs, "evolve")

    def need_run(self) -> dict[str, Any]:
        """What is searched. Raises BadInputError before the first ask."""
        found = self.run()
        if found is None:
            raise BadInputError(
                f"{self.store.uri} has no run.json; run evolve_ask first", field="input.run_uri"
            )
        return found

    def begin(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``run.json`` once; returns the stored one, which may be an earlier, different one."""
        return self._once("run.json", run)

    def ask(self, generation: int) -> dict[str, Any] | None:
        """A generation's candidates."""
        return self._read(f"gen/{generation}/ask.json")

    def need_ask(self, generation: int) -> dict[str, Any]:
        """A generation's candidates. Raises BadInputError where none were asked for."""
        found = self.ask(generation)
        if found is None:
            raise BadInputError(
                f"generation {generation} of {self.store.uri} was never asked for; run evolve_ask first",
                file=self.store.uri_of(f"gen/{generation}/ask.json"),
                field="input.generation",
            )
        return found

    def write_ask(self, generation: int, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Write a generation's candidates once; returns the stored ones."""
        return self._once(f"gen/{generation}/ask.json", ask)

    def result(self, eval_hash: str) -> dict[str, Any] | None:
        """A candidate's score or failure."""
        return self._read(f"results/{eval_hash}.json")

    def has_result(self, eval_hash: str) -> bool:
        """Whether a candidate is done."""
        return self.store.exists(f"results/{eval_hash}.json")

    def write_result(self, eval_hash: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write a candidate's outcome once; returns the stored one."""
        return self._once(f"results/{eval_hash}.json", result)

    def tell(self, generation: int) -> dict[str, Any] | None:
        """What the optimizer was told about a generation."""
        return self._read(f"gen/{generation}/tell.json")

    def write_tell(self, generation: int, tell: Mapping[str, Any]) -> dict[str, Any]:
        """Write a generation's tell once; returns the stored one, which may be an earlier writer's."""
        return self._once(f"gen/{generation}/tell.json", tell)

    def tells(self, before: int) -> list[dict[str, Any]]:
        """Tells of all generations before one. Raises BadInputError where one is missing."""
        found = []
        for generation in range(before):
            tell = self.tell(generation)
            if tell is None:
                raise BadInputError(
                    f"generation {generation} of {self.store.uri} has no tell yet; run evolve_tell first",
                    file=self.store.uri_of(f"gen/{generation}/tell.json"),
                    field="input.generation",
                )
            found.append(tell)
        return found

    def told(self, generation: int) -> list[dict[str, Any]]:
        """Tells of all generations up to one, and of later ones that a longer run of the search has told.

        Raises BadInputError if one up to ``generation`` is missing.
        """
        found = self.tells(generation + 1)
        while (tell := self.tell(len(found))) is not None:
            found.append(tell)
        return found

    def strangers(self) -> list[str]:
        """Names under which this run would write, taken although no evolution has begun here."""
        if self.store.exists("run.json"):
            return []
        return [key for key in _OURS if self.store.exists(key)]

    def put(self, key: str, data: bytes) -> None:
        """Replace a record whole, and only where it says something else."""
        if not self.store.exists(key) or self.store.get_bytes(key) != data:
            self.store.put_bytes(key, data)

    def output(self, key: str) -> Output:
        """A record as an engine's output."""
        data = self.store.get_bytes(key)
        return Output(self.store.uri_of(key), hashlib.sha256(data).hexdigest(), len(data))

    def _read(self, key: str) -> dict[str, Any] | None:
        if not self.store.exists(key):
            return None
        value = self.store.get_json(key)
        if not isinstance(value, dict):
            raise BadInputError(
                f"{self.store.uri_of(key)} is no record of an evolution", file=self.store.uri_of(key)
            )
        return value

    def _once(self, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
        data = canonical_json({"schema_version": SCHEMA_VERSION, **value})
        if self.store.put_if_absent(key, data):
            return dict(json.loads(data))
        return dict(self.store.get_json(key))


def told_values(tell: Mapping[str, Any]) -> list[tuple[tuple[float, ...], float]]:
    """Genes and value of each candidate for the optimizer; a failure (null) is +inf."""
    return [
        (tuple(entry["genes"]), math.inf if entry["value"] is None else float(entry["value"]))
        for entry in tell["candidates"]
    ]
