"""Text to token ids, with one written-down policy for the beginning-of-sequence token.

A missing or a doubled BOS token costs points silently, so prompts are encoded without special tokens and the
BOS is put in front here, once, by policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engines.contract import BadInputError
from engines.inference.backend import Request

BOS_POLICIES = ("auto", "always", "never")


@dataclass(frozen=True)
class TextCodec:
    """A tokenizer reduced to what scoring needs."""

    encode_batch: Callable[[Sequence[str]], list[list[int]]]
    """Ids without any special token added."""
    decode: Callable[[Sequence[int]], str]
    """Text without special tokens."""
    bos: int | None
    eos: int | None
    pad: int
    adds_bos: bool
    """Whether the tokenizer itself begins texts with its BOS token."""
    kind: str
    folder: Path | None = None
    """Where the tokenizer was read from."""

    def chat(self, contexts: Sequence[str]) -> list[str]:
        """Each context as a message of the user in the chat template of the checkpoint.

        Raises BadInputError where it has none, or the template cannot take such a message.
        """
        if self.folder is None:
            raise BadInputError("this tokenizer has no chat template", field="apply_chat_template")
        render = chat_renderer(self.folder)
        return [render(context) for context in contexts]

    def leads_with_bos(self, policy: str) -> bool:
        """What a policy comes to for this tokenizer.

        Raises BadInputError for an unknown policy, or ``always`` where the tokenizer has no BOS token.
        """
        if policy not in BOS_POLICIES:
            raise BadInputError(f"bos: '{policy}' must be one of {', '.join(BOS_POLICIES)}", field="bos")
        if policy == "always" and self.bos is None:
            raise BadInputError("bos: 'always', but the tokenizer has no BOS token; use auto", field="bos")
        return policy == "always" or (policy == "auto" and self.adds_bos)

    def prefix(self) -> int:
        """The token that stands before a text without context."""
        for token in (self.bos, self.eos):
            if token is not None:
                return token
        raise BadInputError(
            "the tokenizer has neither a BOS nor an EOS token to begin a text with", field="model"
        )

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], *, lead: bool) -> list[Request]:
        """Requests of (context, continuation) texts; ``lead``: begin contexts with BOS.

        The continuation's tokens are those that the joined text has beyond the context's, since tokens may
        merge across the seam; blanks at the end of a context belong to the continuation for the same reason.
        """
        moved = [(context.rstrip(), context[len(context.rstrip()) :] + rest) for context, rest in pairs]
        texts = list(dict.fromkeys(text for context, rest in moved for text in (context, context + rest)))
        ids = dict(zip(texts, self.encode_batch(texts), strict=True))
        return [self._request(ids[context], ids[context + rest], rest, lead) for context, rest in moved]

    def _request(self, context: list[int], whole: list[int], rest: str, lead: bool) -> Request:
        continuation = whole[len(context) :]
        if not continuation:
            raise BadInputError(f"the continuation {rest!r} has no token of its own", field="choices")
        head = list(context)
        if (lead and head[:1] != [self.bos]) or not head:
            head.insert(0, self.prefix())
        return Request(tuple(head), tuple(continuation))


def load_codec(folder: Path) -> TextCodec:
    """The tokenizer of a checkpoint from its ``tokenizer.json``, without importing transformers.

    Raises BadInputError where the folder has none.
    """
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BadInputError(f"{folder} has no tokenizer.json", file=str(file), field="model")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a broken file
        raise BadInputError(f"{file} is no tokenizer: {error}", file=str(file), field="model") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    names = _special_names(folder)
    ids = {key: tokenizer.token_to_id(names[key]) if key in names else None for key in ("bos", "eos", "pad")}
    bos, eos = ids["bos"], ids["eos"]
    return TextCodec(
        encode_batch=lambda texts: [
            list(entry.ids) for entry in tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ],
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True)),
        bos=bos,
        eos=eos,
        pad=next((token for token in (ids["pad"], eos, bos) if token is not None), 0),
        adds_bos=bos is not None and tokenizer.encode("").ids[:1] == [bos],
        kind="tokenizers",
        folder=folder,
    )


def load_auto_codec(folder: Path) -> TextCodec:
    """The tokenizer of a checkpoint as ``AutoTokenizer`` loads it. Raises BadInputError where it cannot."""
    tokenizer = _auto_tokenizer(folder)
    bos, eos, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    return TextCodec(
        encode_batch=lambda texts: (
            [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
            if texts
            else []
        ),
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True)),
        bos=bos,
        eos=eos,
        pad=next((token for token in (pad, eos, bos) if token is not None), 0),
        adds_bos=bos is not None and tokenizer("")["input_ids"][:1] == [bos],
        kind=type(tokenizer).__name__,
        folder=folder,
    )


@cache
def chat_renderer(folder: Path) -> Callable[[str], str]:
    """A function from a user's message to the prompt that the checkpoint's chat template makes of it.

    Templates run in transformers' sandbox. Raises BadInputError where the tokenizer has none; the function
    does where the template refuses the message.
    """
    tokenizer = _auto_tokenizer(folder)
    if not tokenizer.chat_template:
        raise BadInputError(
            f"{folder}: the tokenizer has no chat template; leave apply_chat_template out",
            file=str(folder),
            field="apply_chat_template",
        )

    def render(context: str) -> str:
        message = [{"role": "user", "content": context}]
        try:
            return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # jinja2's errors, and whatever a template raises
            reason = " ".join(str(error).split())[:300]
            raise BadInputError(
                f"{folder}: the chat template fails: {reason}", file=str(folder), field="apply_chat_template"
            ) from error

    return render


def _auto_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        message = " ".join(str(error).split())[:300]
        raise BadInputError(
            f"{folder}: the tokenizer does not load: {message}", file=str(folder), field="model"
        ) from error


def _special_names(folder: Path) -> dict[str, str]:
    """Texts of the special tokens by role (bos, eos, pad) as the checkpoint's files name them."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / file
        if not path.is_file():
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BadInputError(f"{path} is not JSON: {error}", file=str(path), field="model") from error
        for role in ("bos", "eos", "pad"):
            token = data.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                names[role] = token
    return names
