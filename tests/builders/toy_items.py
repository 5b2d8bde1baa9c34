"""Task files over the tiny checkpoints' language."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

WORDS = ("fox", "dog", "merge", "models", "weights", "quick", "brown", "lazy", "items", "numbers")


def write_items(path: Path, items: Iterable[Mapping[str, Any]]) -> Path:
    """A JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def questions(
    count: int, *, seed: int = 0, skill: str | None = None, choices: int = 4
) -> list[dict[str, Any]]:
    """Multiple-choice items of random words; some choices are several tokens long."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        prompt = " ".join(generator.choices(WORDS, k=generator.randint(2, 6)))
        options = generator.sample(WORDS, choices)
        item: dict[str, Any] = {"id": f"q{seed}-{number}", "prompt": prompt, "choices": options}
        item["answer"] = generator.randrange(choices)
        made.append(item | ({"skill": skill} if skill else {}))
    return made
