from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import BadInputError
from engines.evolution.genes import Space, quantised
from engines.evolution.keys import backend_identity, eval_hash, generation_seed, recipe_hash


def recipe(weight: Any, folder: str = "/models") -> dict[str, Any]:
    return {
        "merge_method": "task_arithmetic",
        "base_model": f"{folder}/base",
        "models": [{"model": f"{folder}/a", "parameters": {"weight": weight}}],
    }


def digests(folder: str = "/models") -> dict[str, str]:
    return {f"{folder}/base": "b" * 64, f"{folder}/a": "a" * 64}


def test_genes_stand_for_numbers_between_the_bounds() -> None:
    space = Space.of(recipe({"search": [-0.5, 1.0], "start": 0.25}))
    assert space.start() == (0.5,)
    assert space.values([0.0]) == {"models[0].parameters.weight": -0.5}
    assert space.recipe_of([0.4])["models"][0]["parameters"]["weight"] == 0.1


def test_a_recipe_with_nothing_to_search_is_refused() -> None:
    with pytest.raises(BadInputError, match="nothing to search"):
        Space.of(recipe(0.5))


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=5))
def test_quantised_genes_lie_on_the_grid_inside_the_cube_and_stay_there(genes: list[float]) -> None:
    found = quantised(genes)
    assert all(0 <= gene <= 1 and (gene * 1024).is_integer() for gene in found)
    assert quantised(found) == found
    inside = [min(1.0, max(0.0, gene)) for gene in genes]
    assert all(abs(a - b) <= 1 / 2048 for a, b in zip(found, inside, strict=True))


def test_a_recipe_s_hash_follows_content_and_not_paths() -> None:
    first = recipe_hash(recipe(0.5), digests(), 0)
    assert recipe_hash(recipe(0.5, "/elsewhere"), digests("/elsewhere"), 0) == first
    assert recipe_hash({**recipe(0.5), "parameters": {}}, digests(), 0) == first
    assert recipe_hash(recipe(0.5), {**digests(), "/models/a": "c" * 64}, 0) != first
    assert recipe_hash(recipe(0.25), digests(), 0) != first
    assert recipe_hash(recipe(0.5), digests(), 1) != first


def test_a_score_s_hash_follows_everything_that_it_depends_on() -> None:
    backend = backend_identity("llama", "float32", "auto")
    base = eval_hash("r", ["t1", "t2"], None, backend)
    assert eval_hash("r", ["t2", "t1"], None, backend) == base
    others = [
        eval_hash("s", ["t1", "t2"], None, backend),
        eval_hash("r", ["t1"], None, backend),
        eval_hash("r", ["t1", "t2"], 10, backend),
        eval_hash("r", ["t1", "t2"], None, backend_identity("llama", "bfloat16", "auto")),
        eval_hash("r", ["t1", "t2"], None, backend_identity("transformers", "float32", "auto")),
        eval_hash("r", ["t1", "t2"], None, {**backend, "torch": "0.0"}),
    ]
    assert len({base, *others}) == 7
    assert backend["torch"] != "none"


def test_each_generation_of_each_run_has_a_seed_of_its_own() -> None:
    seeds = [generation_seed(run, generation) for run in range(20) for generation in range(20)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert generation_seed(3, 4) == generation_seed(3, 4)
