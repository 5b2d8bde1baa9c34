from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from engines.evolution.optimizer import CmaEs, Genes


def sphere(genes: Genes) -> float:
    return sum((gene - target) ** 2 for gene, target in zip(genes, (0.7, 0.2, 0.5), strict=True))


def play(optimizer: CmaEs, generations: range) -> list[list[Genes]]:
    asked = []
    for generation in generations:
        population = optimizer.ask(generation)
        asked.append(population)
        optimizer.tell([(genes, sphere(genes)) for genes in population])
    return asked


def test_it_finds_a_minimum_inside_the_cube() -> None:
    optimizer = CmaEs([0.3, 0.3, 0.3], 10, sigma=0.2)
    populations = play(optimizer, range(40))
    assert all(0 <= gene <= 1 for population in populations for genes in population for gene in genes)
    assert optimizer.state()["mean"] == pytest.approx([0.7, 0.2, 0.5], abs=1e-3)


def test_a_population_depends_on_the_seed_and_on_what_was_told_alone() -> None:
    first, second = CmaEs([0.4, 0.4, 0.4], 6, sigma=0.2), CmaEs([0.4, 0.4, 0.4], 6, sigma=0.2)
    first.ask(99)  # an ask that nobody answers changes nothing
    assert first.ask(1) == second.ask(1)
    assert first.ask(1) != first.ask(2)


def test_it_goes_on_from_its_state_exactly_as_the_original_would() -> None:
    optimizer = CmaEs([0.3, 0.3, 0.3], 8, sigma=0.2)
    play(optimizer, range(3))
    copy = CmaEs.from_state(json.loads(json.dumps(optimizer.state())))
    assert copy.state() == optimizer.state()
    assert play(copy, range(3, 7)) == play(optimizer, range(3, 7))
    assert copy.state() == optimizer.state()


def test_failures_told_as_infinity_push_the_search_away_and_leave_its_state_finite() -> None:
    optimizer = CmaEs([0.5, 0.5, 0.5], 8, sigma=0.2)
    for generation in range(10):
        population = optimizer.ask(generation)
        optimizer.tell([(genes, math.inf if genes[0] > 0.5 else sphere(genes)) for genes in population])
    state = optimizer.state()
    assert state["mean"][0] < 0.5
    assert np.isfinite(np.array(state["C"])).all()
    json.dumps(state, allow_nan=False)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_nan_never_reaches_the_update(value: float) -> None:
    optimizer = CmaEs([0.5, 0.5, 0.5], 4, sigma=0.2)
    population = optimizer.ask(0)
    before = optimizer.state()
    with pytest.raises(ValueError, match=r"is \+inf"):
        optimizer.tell([(genes, value if n == 2 else 0.0) for n, genes in enumerate(population)])
    assert optimizer.state() == before


def test_exactly_one_population_is_told() -> None:
    optimizer = CmaEs([0.5, 0.5, 0.5], 4, sigma=0.2)
    with pytest.raises(ValueError, match="3 values for a population of 4"):
        optimizer.tell([(genes, 0.0) for genes in optimizer.ask(0)][:3])
    with pytest.raises(ValueError, match="at least 4"):
        CmaEs([0.5], 2, sigma=0.1)


def test_asking_loads_neither_torch_nor_scipy() -> None:
    program = (
        "import sys, engines.evolution.ask, engines.evolution.tell\n"
        "from engines.evolution.optimizer import CmaEs\n"
        "CmaEs([0.5, 0.5], 4, sigma=0.1).ask(0)\n"
        "heavy = {'torch', 'transformers', 'scipy', 'tokenizers', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_asking_changes_nothing_to_the_last_bit() -> None:
    optimizer = CmaEs([0.3, 0.3, 0.3], 8, sigma=0.2)
    play(optimizer, range(3))
    before = optimizer.state()
    optimizer.ask(5)
    assert optimizer.state() == before
