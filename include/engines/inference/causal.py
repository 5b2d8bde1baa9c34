# ruff: noqa: TID253 - computes with torch; imported only by the backends, which are opened inside functions
"""Base of all torch backends: batching, padding and scoring over one forward pass of a causal model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions, Generation, Request, Score
from engines.inference.batching import batches_by_length, rolling_windows
from engines.inference.tokens import TextCodec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CausalBackend(ABC):
    """Scores and generates with ``_logits``; subclasses own the weights."""

    name: str

    def __init__(
        self, codec: TextCodec, options: BackendOptions, device: torch.device, max_length: int
    ) -> None:
        if options.batch_size < 1:
            raise BadInputError(
                f"batch_size: {options.batch_size} must be at least 1; 64 suits small models",
                field="batch_size",
            )
        self.codec, self.options, self.device, self.max_length = codec, options, device, max_length
        self.lead = codec.leads_with_bos(options.bos)
        self.truncated = 0
        """Requests whose context was cut on the left to fit the model, so far."""
        self._first_prompt: list[int] | None = None

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type that the weights have."""

    @abstractmethod
    def parameters(self) -> int:
        """How many numbers the weights are."""

    @abstractmethod
    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """Logits [batch, keep, vocabulary] of the last ``keep`` positions of right-padded ids."""

    @abstractmethod
    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Use these weights from now on."""

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Request]:
        """See InferenceBackend."""
        return self.codec.encode_pairs(pairs, lead=self.lead)

    def chat(self, contexts: Sequence[str]) -> list[str]:
        """See InferenceBackend."""
        return self.codec.chat(contexts)

    def encode_texts(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """See InferenceBackend."""
        return [tuple(ids) for ids in self.codec.encode_batch(texts)]

    def loglikelihood(self, requests: Sequence[Request]) -> list[Score]:
        """See InferenceBackend.

        Requests with the same input share one row: one-token choices cost one pass.
        """
        rows: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for index, request in enumerate(requests):
            rows.setdefault(self._input(request), []).append((index, request.continuation))
        if requests and self._first_prompt is None:
            self._first_prompt = list(requests[0].context[:32])
        scores: list[Score | None] = [None] * len(requests)
        inputs = list(rows)
        for batch in batches_by_length([len(row) for row in inputs], self.options.batch_size):
            self._score_batch([(inputs[index], rows[inputs[index]]) for index in batch], scores)
        return [score for score in scores if score is not None]

    def loglikelihood_rolling(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """See InferenceBackend."""
        owners: list[int] = []
        requests: list[Request] = []
        for number, tokens in enumerate(sequences):
            for given, predicted in rolling_windows(tokens, self.codec.prefix(), self.max_length):
                cut = len(given) - len(predicted) + 1
                requests.append(Request(tuple(given[:cut]), tuple(predicted)))
                owners.append(number)
        totals = [0.0] * len(sequences)
        for number, score in zip(owners, self.loglikelihood(requests), strict=True):
            totals[number] += score.logprob
        return totals

    def generate(self, requests: Sequence[Generation]) -> list[str]:
        """See InferenceBackend."""
        texts = [""] * len(requests)
        for batch in batches_by_length([len(entry.context) for entry in requests], self.options.batch_size):
            for index, text in zip(batch, self._generate([requests[i] for i in batch]), strict=True):
                texts[index] = text
        return texts

    def describe(self) -> dict[str, Any]:
        """See InferenceBackend."""
        return {
            **self.identity(),
            "device": str(self.device),
            "batch_size": self.options.batch_size,
            "first_prompt_ids": self._first_prompt or [],
            "truncated": self.truncated,
        }

    def identity(self) -> dict[str, Any]:
        """The part of ``describe`` that goes into the keys of durable scores."""
        return {
            "backend": self.name,
            "torch": torch.__version__.split("+")[0],
            "tokenizer": self.codec.kind,
            "dtype": str(self.dtype).removeprefix("torch."),
            "bos_policy": self.options.bos,
            "bos_added": self.lead,
            "max_length": self.max_length,
        }

    def _input(self, request: Request) -> tuple[int, ...]:
        """What goes into the model: all but the last token, cut on the left where it is too long."""
        if len(request.continuation) > self.max_length:
            raise BadInputError(
                f"a continuation of {len(request.continuation)} tokens exceeds the model's {self.max_length}",
                field="choices",
            )
        whole = request.context + request.continuation[:-1]
        self.truncated += len(whole) > self.max_length
        return whole[-self.max_length :]

    @torch.inference_mode()
    def _score_batch(
        self,
        batch: Sequence[tuple[tuple[int, ...], list[tuple[int, tuple[int, ...]]]]],
        scores: list[Score | None],
    ) -> None:
        width = len(batch[0][0])
        ids, mask = self._padded([row for row, _ in batch], width)
        starts = [[len(row) - len(continuation) for _, continuation in asked] for row, asked in batch]
        keep = width - min(min(entry) for entry in starts)
        logits = self._logits(ids, mask, keep).float()
        rows: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        owners: list[int] = []
        for number, (_, asked) in enumerate(batch):
            for (index, continuation), start in zip(asked, starts[number], strict=True):
                # Token k of the continuation is predicted at position start + k of the row.
                first = start - (width - keep)
                count = len(continuation)
                rows += [number] * count
                positions += range(first, first + count)
                tokens += continuation
                owners += [index] * count
        row, position, token = (
            torch.tensor(column, device=self.device) for column in (rows, positions, tokens)
        )
        values = logits[row, position, token] - torch.logsumexp(logits, dim=-1)[row, position]
        greedy = logits.argmax(dim=-1)[row, position] == token
        for index, value, best in zip(owners, values.tolist(), greedy.tolist(), strict=True):
            known = scores[index]
            scores[index] = (
                Score(known.logprob + value, known.greedy and best) if known else Score(value, best)
            )

    def _padded(self, rows: Sequence[Sequence[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask, padded on the right: positions of real tokens do not depend on their neighbours."""
        ids = torch.full((len(rows), width), self.codec.pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[number, : len(row)] = 1
        return ids.to(self.device), mask.to(self.device)

    @torch.inference_mode()
    def _generate(self, requests: Sequence[Generation]) -> list[str]:
        """Decode token by token, each time from the whole text; backends with a cache override ``_next``."""
        decoding = Decoding(requests, self.codec, self.max_length)
        while decoding.open:
            rows = [decoding.tokens[index][-self.max_length :] for index in decoding.open]
            ids, mask = self._padded(rows, max(map(len, rows)))
            last = mask.sum(dim=1) - 1
            logits = self._logits(ids, mask, ids.shape[1]).float()
            decoding.extend(logits[torch.arange(len(rows), device=self.device), last].cpu())
        return decoding.texts()


class Decoding:
    """Sequences under way: which are open, and what was chosen so far."""

    def __init__(self, requests: Sequence[Generation], codec: TextCodec, max_length: int) -> None:
        self.requests, self.codec = requests, codec
        self.tokens = [list(entry.context) for entry in requests]
        if any(not row for row in self.tokens):
            raise BadInputError("generation needs a context of at least one token", field="prompt")
        self.open = [index for index, entry in enumerate(requests) if entry.max_new_tokens > 0]
        self._random = [torch.Generator().manual_seed(entry.seed) for entry in requests]

    def extend(self, logits: torch.Tensor) -> None:
        """Choose the next token of each open sequence from its row of logits."""
        still = []
        for row, index in zip(logits, self.open, strict=True):
            request = self.requests[index]
            token = self._choose(row, request, self._random[index])
            if token == self.codec.eos:
                continue
            self.tokens[index].append(token)
            new = self.tokens[index][len(request.context) :]
            stopped = bool(request.stop) and _cut(self.codec.decode(new), request.stop) is not None
            if not stopped and len(new) < request.max_new_tokens:
                still.append(index)
        self.open = still

    def texts(self) -> list[str]:
        """The new texts, cut before the first stop text."""
        found = []
        for request, row in zip(self.requests, self.tokens, strict=True):
            text = self.codec.decode(row[len(request.context) :])
            cut = _cut(text, request.stop)
            found.append(text if cut is None else text[:cut])
        return found

    @staticmethod
    def _choose(logits: torch.Tensor, request: Generation, random: torch.Generator) -> int:
        if request.temperature <= 0:
            return int(logits.argmax())
        weights = torch.softmax(logits / request.temperature, dim=-1)
        return int(torch.multinomial(weights, 1, generator=random))


def _cut(text: str, stops: Sequence[str]) -> int | None:
    places = [text.find(stop) for stop in stops if stop]
    return min((place for place in places if place >= 0), default=None)


def resolve_device(name: str) -> torch.device:
    """``auto`` is the first GPU where there is one. Raises BadInputError for a device that is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInputError(f"device: '{name}' must be auto, cpu, cuda or cuda:N", field="device") from error
    if device.type not in {"cpu", "cuda"}:
        raise BadInputError(f"device: '{name}' must be auto, cpu, cuda or cuda:N", field="device")
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise BadInputError(f"device: no GPU '{name}' is visible here; use auto or cpu", field="device")
    return device


def resolve_dtype(name: str, checkpoint: str | None) -> torch.dtype:
    """The type to compute in; ``auto`` is the checkpoint's own. Raises BadInputError for another name."""
    wanted = (checkpoint or "float32").removeprefix("torch.") if name == "auto" else name
    if wanted not in DTYPES:
        raise BadInputError(f"dtype: '{wanted}' must be one of auto, {', '.join(DTYPES)}", field="dtype")
    return DTYPES[wanted]
