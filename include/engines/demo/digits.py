"""Handwritten digits as a language of 33 words, and the two skills that the demo's models learn.

scikit-learn ships 1,797 images of 8x8 pixels with values 0..16. Mean-pooled to 4x4 they are 16 words
``p0``..``p16``; a first word says whether the digit stands ``upright`` or is ``turned`` by 90 degrees; the
answer is ``d0``..``d9``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
SKILLS = ("upright", "turned")
ANSWERS = tuple(f"d{digit}" for digit in range(10))
VOCABULARY = (*SPECIAL, *SKILLS, *(f"p{level}" for level in range(17)), *ANSWERS)
IDS = {word: number for number, word in enumerate(VOCABULARY)}


@dataclass(frozen=True)
class Splits:
    """Images by number.

    ``search`` is for choosing merges, ``report`` for telling how good they are; no image is in two.
    """

    train: np.ndarray
    search: np.ndarray
    report: np.ndarray


@dataclass(frozen=True)
class Digits:
    """All images as words of both skills, with their labels."""

    words: dict[str, np.ndarray]
    """Skill -> [image, 17] token ids: the skill's word and the 16 pixels."""
    labels: np.ndarray
    """[image], 0..9."""


def load() -> Digits:
    """Read the images that scikit-learn ships and write them in the language."""
    import numpy as np
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    images = {"upright": data.images, "turned": np.rot90(data.images, axes=(1, 2))}
    words = {}
    for skill in SKILLS:
        pooled = images[skill].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4))
        pixels = np.rint(pooled).astype(np.int64).reshape(-1, 16) + IDS["p0"]
        words[skill] = np.concatenate([np.full((len(pixels), 1), IDS[skill]), pixels], axis=1)
    return Digits(words, data.target.astype(np.int64))


def split(labels: np.ndarray, *, search: int, report: int) -> Splits:
    """The three disjoint parts, the same for every training seed, because a report split must never move."""
    import numpy as np

    order = np.random.default_rng(1797).permutation(len(labels))
    return Splits(order[search + report :], order[report : report + search], order[:report])


def items(digits: Digits, skill: str, images: np.ndarray) -> Iterator[dict[str, Any]]:
    """One task item per image."""
    for image in images.tolist():
        prompt = " ".join(VOCABULARY[token] for token in digits.words[skill][image])
        yield {
            "id": f"{skill}-{image:04d}",
            "skill": skill,
            "prompt": prompt,
            "choices": list(ANSWERS),
            "answer": int(digits.labels[image]),
        }
