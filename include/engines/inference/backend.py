"""InferenceBackend: the three calls that evaluation needs of a language model, and the records around them.

No torch here: an engine that only plans or reports can import these names cheaply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


class Request(NamedTuple):
    """Score ``continuation`` after ``context``; token ids."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class Score(NamedTuple):
    """Answer to a Request."""

    logprob: float
    """Natural logarithm of the continuation's probability, summed over its tokens."""
    greedy: bool
    """Whether greedy decoding would have produced exactly this continuation."""


@dataclass(frozen=True)
class Generation:
    """Continue ``context`` until a stop text, the end-of-sequence token or ``max_new_tokens``."""

    context: tuple[int, ...]
    max_new_tokens: int = 32
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    """0 decodes greedily; above it, tokens are drawn with ``seed``, whatever else is in the batch."""
    seed: int = 0


@dataclass(frozen=True)
class BackendOptions:
    """How a backend computes; recorded with every score, since scores depend on it."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: str = "auto"
    """auto (as the checkpoint says), float32, bfloat16 or float16."""
    batch_size: int = 64
    """Sequences in one forward pass."""
    bos: str = "auto"
    """Beginning-of-sequence token before each prompt: auto (as the tokenizer does), always, never."""


class InferenceBackend(Protocol):
    """A causal language model behind three calls. Weights can be swapped without loading anything anew."""

    name: str

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Request]:
        """Token ids of (context, continuation) texts, split where the joined text's tokens say.

        Raises BadInputError where a continuation has no token of its own.
        """
        ...

    def chat(self, contexts: Sequence[str]) -> list[str]:
        """Each context as a user's message in the tokenizer's chat template, up to the answer's beginning.

        Raises BadInputError if the tokenizer has no template.
        """
        ...

    def encode_texts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of whole texts, without a beginning-of-sequence token."""
        ...

    def loglikelihood(self, requests: Sequence[Request]) -> list[Score]:
        """Log-probability of each continuation given its context, in the order asked for."""
        ...

    def loglikelihood_rolling(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability (nats) of each whole sequence.

        Every token is scored once, in windows where the model is too short.
        """
        ...

    def generate(self, requests: Sequence[Generation]) -> list[str]:
        """Continuations as text, cut before the first stop text."""
        ...

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Use these weights from now on. Raises BadInputError for missing, unknown or misshapen tensors."""
        ...

    def describe(self) -> dict[str, Any]:
        """What scores depend on: backend, versions, dtype, device, batch size, BOS policy and its result."""
        ...
