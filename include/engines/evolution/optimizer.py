"""The optimizer of a search: ask and tell, with its state as plain arrays. ``cmaes`` computes CMA-ES.

Three traps of that library are closed here: its random generator is not part of its state (so every ask names
its own seed), NaN silently corrupts its update (refused), and importing the package loads scipy, which takes
longer than a whole ask (so only the module that holds CMA is loaded; it needs numpy alone).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

Genes = tuple[float, ...]
"""A point of the unit cube."""


@cache
def _cma_class() -> Any:
    """``cmaes.CMA`` without the rest of its package."""
    package = find_spec("cmaes")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package cmaes is not installed; it comes with emep[engines]")
    file = Path(package.origin).with_name("_cma.py")
    spec = spec_from_file_location("engines_cmaes_cma", file) if file.is_file() else None
    if spec is None or spec.loader is None:  # another layout of the package: take the slow way
        from cmaes import CMA

        return CMA
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CMA


class CmaEs:
    """Minimises a function over the unit cube, a population at a time: CMA-ES (Hansen, 1604.00772).

    ``start``: mean of the first population; ``sigma``: its deviation in each direction.
    """

    name = "cma-es"

    def __init__(self, start: Sequence[float], population: int, *, sigma: float) -> None:
        import numpy as np

        if population < 4:
            raise ValueError(f"a population of {population} cannot adapt; at least 4")
        bounds = np.tile([0.0, 1.0], (len(start), 1))
        mean = np.array(start, dtype=float)
        self._cma = _cma_class()(mean=mean, sigma=sigma, bounds=bounds, population_size=population, seed=0)

    def ask(self, seed: int) -> list[Genes]:
        """A population: a pure function of what was told so far and ``seed`` (0 to 2^32 - 1)."""
        cma = self._cma
        cma.reseed_rng(seed)
        covariance = cma._C.copy()
        population = [tuple(map(float, cma.ask())) for _ in range(cma.population_size)]
        # Asking rounds the matrix anew; put back, so that asking changes nothing, to the last bit.
        cma._C, cma._B, cma._D = covariance, None, None
        return population

    def tell(self, solutions: Sequence[tuple[Genes, float]]) -> None:
        """A population's values; +inf is worse than all.

        Raises ValueError for NaN and for another number of them.
        """
        import numpy as np

        if len(solutions) != self._cma.population_size:
            raise ValueError(f"{len(solutions)} values for a population of {self._cma.population_size}")
        for genes, value in solutions:
            if math.isnan(value) or value == -math.inf:
                raise ValueError(f"{value} told for {genes}; a failed candidate is +inf")
        self._cma.tell([(np.array(genes, dtype=float), float(value)) for genes, value in solutions])

    def state(self) -> dict[str, Any]:
        """All that ``ask`` and ``tell`` depend on, as JSON values."""
        cma = self._cma
        return {
            "name": self.name,
            "generation": int(cma._g),
            "population": int(cma.population_size),
            "mean": cma._mean.tolist(),
            "sigma": float(cma._sigma),
            "C": cma._C.tolist(),
            "p_sigma": cma._p_sigma.tolist(),
            "p_c": cma._pc.tolist(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CmaEs:
        """The reverse of ``state``: goes on exactly as the original would."""
        import numpy as np

        made = cls(state["mean"], int(state["population"]), sigma=float(state["sigma"]))
        cma = made._cma
        cma._g, cma._C = int(state["generation"]), np.array(state["C"], dtype=float)
        cma._p_sigma, cma._pc = np.array(state["p_sigma"], dtype=float), np.array(state["p_c"], dtype=float)
        return made
